"""Keys and values of the tokens that are still conditioned on, by slot."""

import torch
from torch import Tensor


class KeyValuePool:
    """For each layer a table (capacity, 2, Hkv, D): keys, then values, of one token a slot."""

    def __init__(
        self, *, num_layers: int, capacity: int, num_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.tables = [
            torch.empty(capacity, 2, num_heads, head_dim, dtype=dtype, device=device) for _ in range(num_layers)
        ]

    @property
    def capacity(self) -> int:
        return self.tables[0].shape[0]

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
