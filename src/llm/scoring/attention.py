"""The attention of one pack: runs a plan's calls on the pool's keys and values and joins the parts."""

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import embedding

from llm.scoring.kernels import attend_tiles, rows_are_free
from llm.scoring.key_values import KeyValuePool
from llm.scoring.spans import GRAIN, Plan, SharedCall, TileCall


def attend(plan: Plan, pool: KeyValuePool, layer: int, q: Tensor) -> Tensor:
    """Attention output (N, Hq * D) of the plan's queries q (N, Hq, D) over what the pool holds; q's dtype.

    Shapes: Hkv key heads, g = Hq / Hkv queries a key head, D head_dim. The parts are kept as (rows, g, Hkv, D), the
    order in which the kernel writes them.
    """
    return _Join(plan, pool, layer, q).finish()


class _Join:
    """The parts of one layer's attention.

    `out` (N, g * Hkv * D) is level 0's output, `parts` those of the further levels; `sums` (levels, N, g * Hkv) are
    the logsumexps of all.
    """

    def __init__(self, plan: Plan, pool: KeyValuePool, layer: int, q: Tensor) -> None:
        self.plan, self.pool, self.layer, self.out_dtype = plan, pool, layer, q.dtype
        num_rows, num_queries, self.head_dim = q.shape
        self.num_heads = pool.num_heads
        self.group = num_queries // self.num_heads
        self.heads = torch.empty(
            self.num_heads, num_rows, self.group * self.head_dim, dtype=pool.dtype, device=q.device
        )
        self.heads.unflatten(2, (self.group, -1)).copy_(q.unflatten(1, (self.num_heads, -1)).transpose(0, 1))
        self.sums = torch.full((plan.num_levels, num_rows, num_queries), -torch.inf, device=q.device)
        self.parts: list[tuple[TileCall | SharedCall, Tensor]] = []
        self._run_tiles()
        for call in plan.shared:
            self._run_shared(call)

    def _run_tiles(self) -> None:
        plan = self.plan
        queries = embedding(plan.tile_heads, self.heads.flatten(0, 1)).unflatten(1, (-1, GRAIN))
        keys, values = self.pool.read(self.layer, plan.tile_slots)
        ran = [self._run_tile_call(call, queries, keys, values) for call in plan.tiles]
        outs, sums = zip(*ran[: plan.num_own], strict=True)
        self.out = embedding(plan.own, torch.cat(outs))
        self.sums[0] = embedding(plan.own, torch.cat(sums))
        for call, (out, sum_) in zip(plan.tiles[plan.num_own :], ran[plan.num_own :], strict=True):
            self.parts.append((call, embedding(call.places, out)))
            self.sums[call.level].index_copy_(0, call.rows, embedding(call.places, sum_))

    def _run_tile_call(self, call: TileCall, queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Output (tiles * GRAIN, g * Hkv * D) and logsumexp (tiles * GRAIN, g * Hkv) of a call's tiles.

        `queries` (Hkv, tiles, GRAIN, g * D) and `keys`, `values` (slots, Hkv, D) are those of the whole plan.
        """
        tiles = call.last - call.first
        own = slice(call.keys, call.keys + tiles * call.length)
        folded = queries[:, call.first : call.last].reshape(self.num_heads, tiles, GRAIN * self.group, self.head_dim)
        mask = None
        if call.offset is not None:
            mask = causal_mask(call.length, call.offset, call.window, self.group, keys.dtype, keys.device)
        out, sums = attend_tiles(
            folded.transpose(0, 1),
            keys[own].unflatten(0, (tiles, -1)).transpose(1, 2),
            values[own].unflatten(0, (tiles, -1)).transpose(1, 2),
            mask,
        )
        return out.view(tiles * GRAIN, -1), sums.view(tiles * GRAIN, -1)

    def _run_shared(self, call: SharedCall) -> None:
        keys, values = self.pool.read(self.layer, call.slots)
        if call.gather is None:
            queries = self.heads[:, call.start : call.stop]
        else:
            queries = embedding(call.gather, self.heads.flatten(0, 1))
        num_queries = queries.shape[1]
        free = rows_are_free(self.num_heads, self.group, self.head_dim, torch.get_num_threads())
        tile = (num_queries if free else GRAIN) * self.group
        tiles = queries.reshape(self.num_heads, -1, tile, self.head_dim).transpose(0, 1)
        out, sums = attend_tiles(tiles, keys.transpose(0, 1)[None], values.transpose(0, 1)[None], None)
        self.parts.append((call, out.view(num_queries, -1)))
        sums, level = sums.view(num_queries, -1), self.sums[call.level]
        if call.gather is None:
            for first, last in call.runs:
                level[first:last] = sums[first - call.start : last - call.start]
        else:
            level.index_copy_(0, call.rows, sums[: len(call.rows)])

    def finish(self) -> Tensor:
        """The parts' weighted sum, each row's in the order of its levels."""
        if self.plan.num_levels > 1:
            weights = _weights(self.sums)
            self._by_head(self.out).mul_(weights[0, ..., None])
            for call, out in sorted(self.parts, key=lambda part: part[0].level):
                self._add(call, out, weights[call.level])
        heads = self.out.view(-1, self.group, self.num_heads, self.head_dim).transpose(1, 2)
        return heads.reshape(self.plan.num_rows, -1).to(self.out_dtype)

    def _by_head(self, out: Tensor) -> Tensor:
        return out.view(len(out), -1, self.head_dim)

    def _add(self, call: TileCall | SharedCall, out: Tensor, weights: Tensor) -> None:
        if isinstance(call, SharedCall) and call.gather is None:
            for first, last in call.runs:
                part = self._by_head(out[first - call.start : last - call.start])
                self._by_head(self.out[first:last]).addcmul_(part, weights[first:last, :, None])
            return
        total = embedding(call.rows, self.out)
        part = self._by_head(out[: len(call.rows)])
        self._by_head(total).addcmul_(part, embedding(call.rows, weights)[..., None])
        self.out.index_copy_(0, call.rows, total)


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
