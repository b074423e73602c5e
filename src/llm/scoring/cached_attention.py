"""Attention over the key/value tiles, for a decoding step and for a pack of prompts.

Both are `attend` functions for DecoderModel.hidden_states, by the compiled kernels or by torch. What a row gets
depends on its own position and keys alone, to the bit: the compiled kernels see to that, and torch's products have
fixed shapes (a tile of 64 keys against one token's query heads when decoding, 64 queries against a whole number of
tiles when reading a prompt), of which only the number follows the company.

Shapes: R rows (tokens), Hq query heads, Hkv key/value heads, G = Hq / Hkv, D head_dim, N tiles.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from llm.models.compiled import CompiledKernels, compiled_kernels
from llm.scoring.branches import attend_branches, branch_kernels, branches
from llm.scoring.spans import Queries
from llm.scoring.tiles import EMPTY, HIDDEN, TILE, TilePool

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
GATHERED_POSITIONS = 16384
"""Key positions gathered for one product of a prompt's pack, at most: a bound on its memory."""
LEAST = -87.0
"""Logarithm of the least weight: the CPU's exp is ten times slower below, and in float32 so little adds nothing to a
sum that is 1 at least."""


def one_after_another(parts: Sequence[tuple[int, Attend]]) -> Attend:
    """Gives the first so many tokens to the first part, and so on; tokens that are left over attend to nothing."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if len(parts) == 1 and parts[0][0] == q.shape[0]:
            return parts[0][1](layer, q, k, v)
        out = q.new_zeros(q.shape[0], q.shape[1] * q.shape[2])
        first = 0
        for count, part in parts:
            last = first + count
            out[first:last] = part(layer, q[first:last], k[first:last], v[first:last])
            first = last
        return out

    return attend


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a decoding step's R rows keep their tiles."""

    tiles: tuple[tuple[int, ...], ...]  # R lists, in order of position
    owner: Tensor  # (N,) the row whose query meets each tile
    table: Tensor  # (R, most tiles of a row), short lists end in EMPTY


def place(tiles: Sequence[Sequence[int]], device: torch.device) -> Placement:
    """The placement of rows with these tile lists."""
    width = max(len(own) for own in tiles)
    owner = [0] * (1 + max(max(own) for own in tiles))
    for row, own in enumerate(tiles):
        for tile in own:
            owner[tile] = row
    table = [[*own, *[EMPTY] * (width - len(own))] for own in tiles]
    return Placement(
        tiles=tuple(tuple(own) for own in tiles),
        owner=torch.tensor(owner, device=device),
        table=torch.tensor(table, device=device),
    )


def decode_attend(pool: TilePool, placement: Placement, positions: Sequence[int]) -> Attend:
    """Stores each row's key and value at its position, then attends to all that its windows show of its tiles."""
    if pool.is_plain and pool.head_dim % 8 == 0 and (kernels := compiled_kernels()) is not None:
        return _decode_by_rows(kernels, pool, placement, positions)
    return _decode_by_tiles(pool, placement, positions)


def _decode_by_rows(kernels: CompiledKernels, pool: TilePool, placement: Placement, positions: Sequence[int]) -> Attend:
    last = torch.tensor(positions)
    firsts = {
        window: (last - (window - 1)).clamp_(min=0) if window is not None else torch.zeros_like(last)
        for window in set(pool.windows)
    }

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        first = firsts[pool.windows[layer]]
        out = kernels.attend(q, k, v, pool.keys(layer), pool.values(layer), placement.table, first, last)
        return out.to(q.dtype)

    return attend


def _decode_by_tiles(pool: TilePool, placement: Placement, positions: Sequence[int]) -> Attend:
    last = [own[position // TILE] for own, position in zip(placement.tiles, positions, strict=True)]
    last_tile = torch.tensor(last, device=pool.device)
    offset = torch.tensor([position % TILE for position in positions], device=pool.device)
    pool.show_next(last_tile, offset)
    num_rows, num_kv_heads, head_dim, num_tiles = len(positions), pool.num_kv_heads, pool.head_dim, len(placement.owner)
    heads = torch.arange(num_kv_heads, device=pool.device)
    slots = ((last_tile[:, None] * num_kv_heads + heads) * TILE + offset[:, None]).reshape(-1)
    biases = {
        window: pool.bias(window)[:num_tiles].repeat_interleave(num_kv_heads, dim=0)[:, None, :]
        for window in set(pool.windows)
    }

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = pool.keys(layer), pool.values(layer)
        keys.view(-1, head_dim).index_copy_(0, slots, k.reshape(-1, head_dim).to(keys.dtype))
        values.view(-1, head_dim).index_copy_(0, slots, v.reshape(-1, head_dim).to(values.dtype))
        queries = q.reshape(num_rows, -1).to(keys.dtype).mul(head_dim**-0.5).index_select(0, placement.owner)
        scores = torch.baddbmm(
            biases[pool.windows[layer]],
            queries.view(num_tiles * num_kv_heads, -1, head_dim),
            keys[:num_tiles].view(-1, TILE, head_dim).transpose(1, 2),
        )
        out = _over_tiles(scores, values[:num_tiles].view(-1, TILE, head_dim), placement, num_kv_heads)
        return out.view(num_rows, -1).to(q.dtype)

    return attend


def _over_tiles(scores: Tensor, values: Tensor, placement: Placement, num_kv_heads: int) -> Tensor:
    """Softmax of scores (N * Hkv, G, TILE) over all tiles of a row, times values: (R, Hkv, G, D)."""
    group, head_dim = scores.shape[1], values.shape[2]
    by_tile = (-1, num_kv_heads * group)
    peaks = scores.amax(dim=-1).view(by_tile)[placement.table].amax(dim=1)
    weights = scores.sub_(peaks.index_select(0, placement.owner).view(-1, group, 1)).clamp_(min=LEAST).exp_()
    weights[EMPTY * num_kv_heads : (EMPTY + 1) * num_kv_heads] = 0.0  # whatever the row whose query it met
    mass = weights.sum(dim=-1).view(by_tile)[placement.table].sum(dim=1)
    mixed = torch.bmm(weights.to(values.dtype), values).view(-1, num_kv_heads * group, head_dim)
    return mixed[placement.table].sum(dim=1).div_(mass[:, :, None])


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One sequence's share in a pack: positions start … stop - 1, found at the pack's flat indices `flat`.

    Those before `owned` are another segment's tokens too (an equal beginning, computed once): their keys and values
    are stored in this sequence's tiles as well, their attention is the other segment's business.
    """

    tiles: tuple[int, ...]
    start: int
    owned: int
    stop: int
    flat: tuple[int, ...]

    def queries(self, num_kv_heads: int) -> Queries:
        """The owned positions; their path counts pieces of D floats, to the first head's."""
        places = np.array(self.tiles)[:, None] * num_kv_heads * TILE + np.arange(TILE)
        return Queries(
            positions=np.arange(self.owned, self.stop),
            rows=np.array(self.flat[self.owned - self.start : self.stop - self.start]),
            path=places.reshape(-1)[: self.stop],
        )

    def flat_tile(self, index: int) -> list[int]:
        """Flat indices of the 64 positions of tile `index`, -1 where the pack does not own the position."""
        return [
            self.flat[position - self.start] if self.owned <= position < self.stop else -1
            for position in range(index * TILE, (index + 1) * TILE)
        ]


@dataclass(frozen=True, kw_only=True)
class _QueryTiles:
    """Tiles of queries with the same number of key tiles before them: one product."""

    keys: Tensor  # (n, index + 1) tile numbers
    queries: Tensor  # (n * TILE,) flat indices, 0 for positions that are not wanted
    source: Tensor  # rows of the product's (n * TILE) that are wanted …
    target: Tensor  # … and their flat indices
    mask: Tensor  # (G * TILE, (index + 1) * TILE)


def pack_attend(pool: TilePool, segments: Sequence[Segment], *, group: int) -> Attend:
    """Stores the segments' keys and values, then attends causally, within the layer's window.

    Args:
        group: query heads that share a key/value head (G).
    """
    if (kernels := branch_kernels(pool.keys(0))) is not None:
        return _pack_by_branches(kernels, pool, segments, group)
    return _pack_by_tiles(pool, segments, group)


def _pack_by_branches(kernels: CompiledKernels, pool: TilePool, segments: Sequence[Segment], group: int) -> Attend:
    store = _storing(pool, segments)
    chunks = [segment.queries(pool.num_kv_heads) for segment in segments if segment.owned < segment.stop]
    plan = branches(chunks, sum(len(chunk.rows) for chunk in chunks), group=group, step=1)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = store(layer, k, v)
        return attend_branches(kernels, plan, keys, values, q, window=pool.windows[layer])

    return attend


def _pack_by_tiles(pool: TilePool, segments: Sequence[Segment], group: int) -> Attend:
    num_kv_heads, head_dim = pool.num_kv_heads, pool.head_dim
    store = _storing(pool, segments)
    work = {window: _query_tiles(segments, group, window, pool.device) for window in set(pool.windows)}

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = store(layer, k, v)
        out = q.new_zeros(q.shape[0], q.shape[1] * q.shape[2])
        for part in work[pool.windows[layer]]:
            queries = q[part.queries].to(keys.dtype).view(-1, TILE, num_kv_heads, group, head_dim)
            queries = queries.permute(0, 2, 3, 1, 4).reshape(-1, num_kv_heads, group * TILE, head_dim)
            mixed = torch.nn.functional.scaled_dot_product_attention(
                queries, _sequences(keys, part.keys), _sequences(values, part.keys), attn_mask=part.mask
            )
            mixed = mixed.view(-1, num_kv_heads, group, TILE, head_dim).permute(0, 3, 1, 2, 4)
            out.index_copy_(0, part.target, mixed.reshape(-1, out.shape[1])[part.source].to(out.dtype))
        return out

    return attend


def _sequences(tiles: Tensor, index: Tensor) -> Tensor:
    """Keys or values (n, Hkv, positions, D) of n sequences with these (n, m) tiles."""
    gathered = tiles[index].transpose(1, 2)
    return gathered.reshape(gathered.shape[0], gathered.shape[1], -1, gathered.shape[-1])


def _storing(pool: TilePool, segments: Sequence[Segment]) -> Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Stores a layer's keys and values of the segments' tokens; returns all that the pool has of that layer."""
    written, slots = _writes(segments, pool.num_kv_heads, pool.device)

    def store(layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        tables = pool.keys(layer), pool.values(layer)
        for table, new in zip(tables, (k, v), strict=True):
            table.view(-1, pool.head_dim).index_copy_(0, slots, new[written].reshape(-1, pool.head_dim).to(table.dtype))
        return tables

    return store


def _writes(segments: Sequence[Segment], num_kv_heads: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Flat indices of the tokens to store, and the pool rows (Hkv a token) where they go."""
    written, tiles, offsets = [], [], []
    for segment in segments:
        for position in range(segment.start, segment.stop):
            written.append(segment.flat[position - segment.start])
            tiles.append(segment.tiles[position // TILE])
            offsets.append(position % TILE)
    heads = torch.arange(num_kv_heads)
    slots = (torch.tensor(tiles)[:, None] * num_kv_heads + heads) * TILE + torch.tensor(offsets)[:, None]
    return torch.tensor(written, device=device), slots.reshape(-1).to(device)


def _query_tiles(
    segments: Sequence[Segment], group: int, window: int | None, device: torch.device
) -> list[_QueryTiles]:
    by_index: dict[int, list[Segment]] = {}
    for segment in segments:
        for index in range(segment.owned // TILE, -(-segment.stop // TILE)) if segment.owned < segment.stop else ():
            by_index.setdefault(index, []).append(segment)
    if not by_index:
        return []
    mask = causal_mask(max(by_index) + 1, group, window, device)
    work = []
    for index, members in by_index.items():
        at_once = max(1, GATHERED_POSITIONS // ((index + 1) * TILE))
        for first in range(0, len(members), at_once):
            work.append(_query_tile(members[first : first + at_once], index, mask, device))
    return work


def _query_tile(members: Sequence[Segment], index: int, mask: Tensor, device: torch.device) -> _QueryTiles:
    flat = torch.tensor([segment.flat_tile(index) for segment in members]).reshape(-1)
    wanted = torch.nonzero(flat >= 0).reshape(-1)
    return _QueryTiles(
        keys=torch.tensor([segment.tiles[: index + 1] for segment in members], device=device),
        queries=flat.clamp(min=0).to(device),
        source=wanted.to(device),
        target=flat[wanted].to(device),
        mask=mask[:, -(index + 1) * TILE :],
    )


def causal_mask(num_tiles: int, group: int, window: int | None, device: torch.device) -> Tensor:
    """(group * TILE, num_tiles * TILE): what the last tile's queries may see, head by head; its right end serves
    every shorter sequence, because only the distance between query and key counts.
    """
    query = torch.arange(TILE, device=device)[:, None] + (num_tiles - 1) * TILE
    distance = query - torch.arange(num_tiles * TILE, device=device)
    seen = (distance >= 0) & (distance < (window or num_tiles * TILE))
    return torch.where(seen, 0.0, HIDDEN).repeat(group, 1)
