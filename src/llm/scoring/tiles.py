"""Keys and values of sequences that are being generated, in tiles of 64 positions.

Each sequence owns a list of tiles; a tile holds positions 64i … 64i + 63 of one sequence for every layer. Free tiles
are handed out lowest first, so those in use lie together at the bottom of the pool and a decoding step reads it in
place, without gathering.
"""

import heapq
from collections.abc import Sequence

import torch
from torch import Tensor

TILE = 64
EMPTY = 0
"""The number of the tile that is always hidden: adding it to a sequence changes nothing, to the bit."""
HIDDEN = -1e30
"""Added to the score of a key that must not be seen. Finite, so that a wholly hidden tile gives weight 0, not NaN."""


def tiles_for(num_tokens: int) -> int:
    """How many tiles hold that many tokens."""
    return -(-num_tokens // TILE)


class TilePool:
    """A growing pool of key/value tiles. The first, EMPTY, is nobody's.

    Args:
        windows: each layer's sliding window (positions that a token sees, itself included), None where it sees all.

    Shapes: L layers, N tiles, H key/value heads, D head_dim, W distinct windows. `_bias` (W, N, TILE) is 0 where a
    position may be seen and HIDDEN elsewhere.
    """

    def __init__(
        self,
        *,
        windows: Sequence[int | None],
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.windows = tuple(windows)
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self._kinds = list(dict.fromkeys(windows))
        self._store = torch.zeros(len(windows), 2, 1, num_kv_heads, TILE, head_dim, dtype=dtype, device=device)
        self._bias = torch.full((len(self._kinds), 1, TILE), HIDDEN, device=device)
        self._free: list[int] = []

    @property
    def device(self) -> torch.device:
        return self._bias.device

    @property
    def is_plain(self) -> bool:
        """Whether the tiles are float32 in the machine's own memory."""
        return self._store.dtype == torch.float32 and self._store.device.type == "cpu"

    @property
    def bytes_per_tile(self) -> int:
        return self._store[:, :, 0].numel() * self._store.element_size()

    def keys(self, layer: int) -> Tensor:
        """(N, H, TILE, D), a view."""
        return self._store[layer, 0]

    def values(self, layer: int) -> Tensor:
        """(N, H, TILE, D), a view."""
        return self._store[layer, 1]

    def bias(self, window: int | None) -> Tensor:
        """(N, TILE), a view: what layers with this window add to scores."""
        return self._bias[self._kinds.index(window)]

    def reserve(self, count: int) -> None:
        """Make room for that many tiles in all, so that taking them one by one copies nothing."""
        if count >= self._store.shape[2]:
            self._grow(count + 1 - self._store.shape[2])

    def take(self, count: int) -> list[int]:
        """That many tiles, zeroed and wholly hidden: nothing of an earlier owner, a NaN above all, shines through."""
        if count > len(self._free):
            self._grow(count - len(self._free))
        tiles = [heapq.heappop(self._free) for _ in range(count)]
        for tile in tiles:
            self._store[:, :, tile].zero_()
            self._bias[:, tile] = HIDDEN
        return tiles

    def give_back(self, tiles: Sequence[int]) -> None:
        for tile in tiles:
            heapq.heappush(self._free, tile)

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy whole tiles' keys and values, layer by layer (not the bias)."""
        index = list(source)
        for layer in self._store:
            layer[:, list(target)] = layer[:, index]

    def show(self, tiles: Sequence[int], length: int) -> None:
        """Show positions 0 … length - 1 of a sequence, as far as each window reaches back, and hide the others."""
        for window, bias in zip(self._kinds, self._bias, strict=True):
            fresh = torch.full((len(tiles), TILE), HIDDEN, device=self.device)
            fresh.view(-1)[max(0, length - window) if window is not None else 0 : length] = 0.0
            bias[list(tiles)] = fresh

    def move_windows(self, tiles: Sequence[int], position: int) -> None:
        """Hide the one position that each window leaves behind when a sequence comes to `position`."""
        for window, bias in zip(self._kinds, self._bias, strict=True):
            if window is not None and position >= window:
                left = position - window
                bias[tiles[left // TILE], left % TILE] = HIDDEN

    def show_next(self, tiles: Tensor, offsets: Tensor) -> None:
        """Show one new position of each row."""
        self._bias[:, tiles, offsets] = 0.0

    def _grow(self, missing: int) -> None:
        """Half as much again at least, so that copying stays rare. Untouched memory costs nothing on a CPU."""
        old = self._store.shape[2]
        new = old + max(missing, old // 2)
        shape = list(self._store.shape)
        shape[2] = new
        store = self._store.new_empty(shape)
        store[:, :, :old] = self._store
        self._store = store
        extra = self._bias.new_zeros(len(self._kinds), new - old, TILE)
        self._bias = torch.cat([self._bias, extra], dim=1)
        for tile in range(old, new):
            heapq.heappush(self._free, tile)
