"""Keys and values of the tokens that are still conditioned on, by slot."""

from typing import Any, Self

import torch
from torch import Tensor


class KeyValuePool:
    """For each layer a table (capacity, 2, Hkv, D): keys, then values, of one token a slot. It starts without slots.

    On the CPU it holds float32 whatever the model's dtype: attention is computed in it.
    """

    def __init__(
        self, *, num_layers: int, num_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._row = (2, num_heads, head_dim)
        self.dtype = dtype
        self.tables = [torch.empty(0, *self._row, dtype=dtype, device=device) for _ in range(num_layers)]

    @classmethod
    def for_model(cls, model: Any) -> Self:
        """An empty pool of the decoder's shape."""
        config = model.config
        return cls(
            num_layers=config.num_hidden_layers,
            num_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            dtype=torch.float32 if model.device.type == "cpu" else model.dtype,
            device=model.device,
        )

    @property
    def capacity(self) -> int:
        """How many slots there are."""
        return self.tables[0].shape[0]

    @property
    def num_heads(self) -> int:
        """Hkv."""
        return self._row[1]

    @property
    def bytes_per_slot(self) -> int:
        """Bytes one token takes in all layers."""
        _, num_heads, head_dim = self._row
        return len(self.tables) * 2 * num_heads * head_dim * self.dtype.itemsize

    def resize(self, capacity: int, *, keep: int) -> None:
        """Have at least `capacity` slots, or exactly so many if there are more than twice as many; the contents of
        the first `keep` survive.
        """
        if capacity <= self.capacity <= 2 * capacity:
            return
        for layer, old in enumerate(self.tables):
            new = old.new_empty(capacity, *self._row)
            kept = min(keep, len(old), capacity)
            new[:kept] = old[:kept]
            self.tables[layer] = new

    def store(self, layer: int, slots: Tensor | slice, keys: Tensor, values: Tensor) -> None:
        """Keep keys and values (n, Hkv, D) in `slots`, cast to the pool's dtype."""
        table = self.tables[layer]
        if isinstance(slots, slice):
            table[slots, 0] = keys
            table[slots, 1] = values
        else:
            table.index_copy_(0, slots, torch.stack([keys, values], dim=1).to(table.dtype))

    def read(self, layer: int, slots: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Keys and values at `slots`, each (*slots, Hkv, D)."""
        table = self.tables[layer]
        if isinstance(slots, slice):
            found = table[slots]
        else:
            flat = torch.nn.functional.embedding(slots, table.flatten(1))
            found = flat.unflatten(-1, table.shape[1:])
        return found.select(-3, 0), found.select(-3, 1)
