"""The attention of one pack: runs a plan's calls on the pool's keys and values and joins the parts."""

from functools import cache

import torch
from torch import Tensor

from llm.scoring.kernels import attend_tiles, rows_are_free
from llm.scoring.key_values import KeyValuePool
from llm.scoring.spans import GRAIN, Plan, SharedCall, TileCall


def attend(plan: Plan, pool: KeyValuePool, layer: int, q: Tensor) -> Tensor:
    """Attention output (N, Hq * D) of the plan's queries q (N, Hq, D) over what the pool holds; q's dtype.

    Shapes: Hkv key heads, g = Hq / Hkv queries a key head, D head_dim. The parts are kept as (rows, g, Hkv, D), the
    order in which the kernel writes them.
    """
    join = _Join(plan, pool, layer, q)
    for call in plan.shared:
        join.add_shared(call)
    return join.finish()


class _Join:
    """The parts of one layer's attention: outputs, and their logsumexps by level (levels, N, g * Hkv)."""

    def __init__(self, plan: Plan, pool: KeyValuePool, layer: int, q: Tensor) -> None:
        self.plan, self.pool, self.layer = plan, pool, layer
        self.out_dtype = q.dtype
        self.num_heads = pool.tables[layer].shape[2]
        self.group = q.shape[1] // self.num_heads
        self.head_dim = q.shape[2]
        shape = (self.num_heads, len(q), self.group, self.head_dim)
        self.heads = torch.empty(shape, dtype=pool.tables[layer].dtype, device=q.device)
        self.heads.copy_(q.unflatten(1, (self.num_heads, self.group)).transpose(0, 1))
        self.heads = self.heads.flatten(2)  # (Hkv, N, g * D)
        self.sums = torch.full((plan.num_levels, plan.num_rows, q.shape[1]), -torch.inf, device=q.device)
        self.shared: list[tuple[SharedCall, Tensor]] = []
        self._run_tiles()

    def _queries(self, rows: Tensor) -> Tensor:
        """(Hkv, len(rows), g * D)."""
        offsets = torch.arange(self.num_heads, device=rows.device)[:, None] * self.heads.shape[1]
        return torch.nn.functional.embedding(rows + offsets, self.heads.flatten(0, 1))

    def _run_tiles(self) -> None:
        plan = self.plan
        queries = self._queries(plan.tile_rows.flatten()).unflatten(1, (-1, GRAIN))  # (Hkv, tiles, GRAIN, g * D)
        outs, sums = zip(*(self._run_tile_call(call, queries) for call in plan.tiles), strict=True)
        num_own = sum(call.level == 0 for call in plan.tiles)
        embedding = torch.nn.functional.embedding
        self.out = embedding(plan.own, torch.cat(outs[:num_own]))
        self.sums[0] = embedding(plan.own, torch.cat(sums[:num_own]))
        self.small = [
            (call, embedding(call.places, out)) for call, out in zip(plan.tiles[num_own:], outs[num_own:], strict=True)
        ]
        for call, part in zip(plan.tiles[num_own:], sums[num_own:], strict=True):
            self.sums[call.level].index_copy_(0, call.rows, embedding(call.places, part))

    def _run_tile_call(self, call: TileCall, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Output (tiles * GRAIN, g * Hkv * D) and logsumexp (tiles * GRAIN, g * Hkv) of a call's tiles."""
        keys, values = self.pool.read(self.layer, call.slots)  # (tiles, L, Hkv, D)
        own = queries[:, call.first : call.last].unflatten(-1, (self.group, self.head_dim)).flatten(2, 3)
        mask = None
        if call.offset is not None:
            mask = causal_mask(call.slots.shape[1], call.offset, call.window, self.group, keys.dtype, keys.device)
        out, sums = attend_tiles(own.transpose(0, 1), keys.transpose(1, 2), values.transpose(1, 2), mask)
        num_queries = (call.last - call.first) * GRAIN
        return out.view(num_queries, -1), sums.view(num_queries, -1)

    def add_shared(self, call: SharedCall) -> None:
        keys, values = self.pool.read(self.layer, call.slots)  # (L, Hkv, D)
        queries = self.heads[:, call.start : call.stop] if call.gather is None else self._queries(call.gather)
        num_queries = queries.shape[1]
        rows = queries.unflatten(-1, (self.group, self.head_dim))
        free = rows_are_free(self.num_heads, self.group, self.head_dim, torch.get_num_threads())
        tile = num_queries if free else GRAIN
        tiles = rows.unflatten(1, (-1, tile)).flatten(2, 3).transpose(0, 1)
        out, sums = attend_tiles(tiles, keys.transpose(0, 1)[None], values.transpose(0, 1)[None], None)
        out, sums = out.view(num_queries, -1), sums.view(num_queries, -1)
        level = self.sums[call.level]
        if call.gather is None:
            for first, last in call.runs:
                level[first:last] = sums[first - call.start : last - call.start]
        else:
            level.index_copy_(0, call.rows, sums[: len(call.rows)])
        self.shared.append((call, out))

    def finish(self) -> Tensor:
        """The parts' weighted sum, each row's in the order of its levels."""
        if self.plan.num_levels > 1:
            weights = _weights(self.sums)
            self._scale(self.out, weights[0])
            parts: list[tuple[int, TileCall | SharedCall, Tensor]] = []
            parts += [(call.level, call, out) for call, out in self.small]
            parts += [(call.level, call, out) for call, out in self.shared]
            for level, call, out in sorted(parts, key=lambda part: part[0]):
                self._add(call, out, weights[level])
        heads = self.out.view(-1, self.group, self.num_heads, self.head_dim).transpose(1, 2)
        return heads.reshape(self.plan.num_rows, -1).to(self.out_dtype)

    def _scale(self, out: Tensor, weights: Tensor) -> Tensor:
        out.view(-1, weights.shape[1], self.head_dim).mul_(weights[..., None])
        return out

    def _add(self, call: TileCall | SharedCall, out: Tensor, weights: Tensor) -> None:
        if isinstance(call, SharedCall) and call.gather is None:
            for first, last in call.runs:
                part = self._scale(out[first - call.start : last - call.start], weights[first:last])
                self.out[first:last].add_(part)
            return
        part = self._scale(out[: len(call.rows)], torch.nn.functional.embedding(call.rows, weights))
        part.add_(torch.nn.functional.embedding(call.rows, self.out))
        self.out.index_copy_(0, call.rows, part)


def _weights(sums: Tensor) -> Tensor:
    """Each level's share (levels, N, heads), in place of its logsumexp."""
    sums.sub_(sums.amax(dim=0)).exp_()
    total = sums[0].clone()
    for level in sums[1:]:
        total.add_(level)
    return sums.div_(total)


@cache
def causal_mask(
    length: int, offset: int, window: int | None, group: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """(GRAIN * group, length): 0 where query r of a tile may see key c, else -inf.

    Query r stands at position offset + r after the first key; with a window it sees its last `window` positions.
    """
    positions = torch.arange(GRAIN, device=device)[:, None] + offset
    columns = torch.arange(length, device=device)[None, :]
    seen = columns <= positions
    if window is not None:
        seen &= columns > positions - window
    mask = torch.zeros(GRAIN, length, dtype=dtype, device=device).masked_fill_(~seen, -torch.inf)
    return mask.repeat_interleave(group, dim=0)
