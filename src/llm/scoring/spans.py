"""Which keys a query reads in one call: decided by its own position alone, so that its bits never depend on company.

A query at position p reads the keys before it in a fixed set of spans, whatever pack it stands in and wherever the
prefix tree branches: full spans of 128 to 1024 keys, largest first, that end at or before the last multiple of 128
(no mask), then the block from there to p, in whole grains of 16 keys (masked). The parts are joined by their
logsumexp in that order. Full spans that many queries of a pack share are one call over the same keys; the rest goes
in tiles of 16 queries. No torch here beyond index tensors: `plan` turns a pack into calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

GRAIN = 16
"""Queries in a small tile, and the step of key lengths."""
BLOCK = 128
"""Positions that share one start of their own block."""
SPANS = (1024, 512, 256, 128)
"""Lengths of full spans, multiples of BLOCK."""
MANY = 3 * GRAIN
"""From this many queries on, a span they share is one call."""


@dataclass(frozen=True)
class Queries:
    """The queries of one chunk: their ascending `positions` (n,), their row numbers in q (n,) and `path`, the slots of
    the keys at positions 0 … path.size - 1, which is at least the last query's position + 1.
    """

    positions: np.ndarray
    rows: np.ndarray
    path: np.ndarray


@dataclass(frozen=True, kw_only=True)
class TileCall:
    """Tiles of GRAIN queries, each with its own `length` keys: tiles first … last - 1 of the plan, whose keys begin at
    `keys` in its `tile_slots`. `offset` is None without a mask, else the position of a tile's first query minus that
    of its first key. `rows` are the rows of q served and `places` their place among the call's queries.
    """

    first: int
    last: int
    length: int
    keys: int
    level: int
    offset: int | None
    window: int | None
    rows: Tensor
    places: Tensor


@dataclass(frozen=True, kw_only=True)
class SharedCall:
    """Many queries over the same keys: `slots` (L,) or, where they lie together, a slice.

    Either the queries are the rows start … stop - 1 of q (whole grains), of which `runs` are served, or `gather`
    (Hkv, whole grains) names them, as in `Plan.tile_heads`, and the leading len(rows) are served.
    """

    level: int
    slots: Tensor | slice
    start: int
    stop: int
    runs: tuple[tuple[int, int], ...]
    gather: Tensor | None
    rows: Tensor


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The attention of `num_rows` queries: level 0 serves each row once, every further level a row at most once.

    `tile_heads` (Hkv, tiles * GRAIN) names the queries of all small tiles, for key head h as h * num_rows + row;
    `tile_slots` are the tiles' keys one after the other. The leading calls are those of level 0, and `own` (num_rows,)
    says where among their queries each row stands.
    """

    num_rows: int
    num_levels: int
    tile_heads: Tensor
    tile_slots: Tensor
    own: Tensor
    num_own: int
    tiles: tuple[TileCall, ...]
    shared: tuple[SharedCall, ...]


@cache
def full_spans(block: int) -> tuple[tuple[int, int], ...]:
    """(start, length) of the full spans before position block * BLOCK, largest first."""
    spans, start = [], 0
    for length in SPANS:
        while start + length <= block * BLOCK:
            spans.append((start, length))
            start += length
    return tuple(spans)


def plan(chunks: Sequence[Queries], num_rows: int, *, num_heads: int, window: int | None, device: torch.device) -> Plan:
    """The calls that serve `chunks`, whose rows lie below `num_rows`; rows of no chunk get the values of some other.

    With a sliding `window` a query sees the last `window` positions, itself included: from the first grain that
    reaches beyond it on, one tile holds the grain's whole window. `num_heads` is Hkv.
    """
    planner = _Planner(num_rows, num_heads, window, device)
    for queries in chunks:
        planner.add(queries)
    return planner.finish()


@dataclass(frozen=True)
class _Tile:
    """One grain of queries: row numbers (GRAIN,), key slots (L,), and which of the rows are real."""

    rows: np.ndarray
    slots: np.ndarray
    real: np.ndarray


class _Planner:
    def __init__(self, num_rows: int, num_heads: int, window: int | None, device: torch.device) -> None:
        self.num_rows, self.num_heads, self.window, self.device = num_rows, num_heads, window, device
        self.own: dict[tuple[int, int, int], list[_Tile]] = {}
        self.groups: dict[tuple[int, int, int, int], list[tuple[np.ndarray, np.ndarray]]] = {}
        self.tiles: list[_Tile] = []
        self.num_keys = 0

    def add(self, queries: Queries) -> None:
        grains = queries.positions // GRAIN
        for first, last in _stretches(grains):
            self._add_grain(queries, int(grains[first]), first, last)
        blocks = queries.positions // BLOCK
        for first, last in _stretches(blocks):
            self._add_spans(queries, int(blocks[first]), first, last)

    def _add_grain(self, queries: Queries, grain: int, first: int, last: int) -> None:
        """The tile in which positions GRAIN * grain onwards read their own block."""
        start, stop = GRAIN * grain, GRAIN * (grain + 1)
        window = self.window if self.window is not None and stop > self.window else 0
        origin = max(0, start + 1 - window) // GRAIN * GRAIN if window else start // BLOCK * BLOCK
        places = queries.positions[first:last] - start
        real = np.zeros(GRAIN, dtype=bool)
        real[places] = True
        rows = np.full(GRAIN, queries.rows[first])
        rows[places] = queries.rows[first:last]
        slots = queries.path[np.minimum(np.arange(origin, stop), len(queries.path) - 1)]
        self.own.setdefault((stop - origin, start - origin, window), []).append(_Tile(rows, slots, real))

    def _add_spans(self, queries: Queries, block: int, first: int, last: int) -> None:
        rows = queries.rows[first:last]
        if self.window is not None:
            rows = rows[queries.positions[first:last] // GRAIN * GRAIN + GRAIN <= self.window]
        for level, (start, length) in enumerate(full_spans(block), start=1):
            if len(rows):
                slots = queries.path[start : start + length]
                self.groups.setdefault((level, start, length, int(slots[-1])), []).append((rows, slots))

    def finish(self) -> Plan:
        calls = [
            self._tile_call(members, 0, offset, window or None)
            for (_, offset, window), members in sorted(self.own.items(), key=lambda item: item[0])
        ]
        num_own = len(calls)
        rows = np.concatenate([tile.rows for tile in self.tiles])
        real = np.concatenate([tile.real for tile in self.tiles])
        own = np.zeros(self.num_rows, dtype=np.int64)
        own[rows[real]] = np.flatnonzero(real)

        shared: list[SharedCall] = []
        small: dict[tuple[int, int], list[_Tile]] = {}
        for (level, _, length, _), parts in self.groups.items():
            rows, slots = np.concatenate([rows for rows, _ in parts]), parts[0][1]
            if len(rows) >= MANY:
                shared.append(self._shared_call(level, rows, slots))
            else:
                small.setdefault((level, length), []).extend(_grains(rows, slots))
        calls += [self._tile_call(members, level, None, None) for (level, _), members in sorted(small.items())]
        return Plan(
            num_rows=self.num_rows,
            num_levels=1 + max((key[0] for key in self.groups), default=0),
            tile_heads=self._heads(np.concatenate([tile.rows for tile in self.tiles])),
            tile_slots=self._tensor(np.concatenate([tile.slots for tile in self.tiles])),
            own=self._tensor(own),
            num_own=num_own,
            tiles=tuple(calls),
            shared=tuple(sorted(shared, key=lambda call: call.level)),
        )

    def _tile_call(self, members: list[_Tile], level: int, offset: int | None, window: int | None) -> TileCall:
        first, keys, length = len(self.tiles), self.num_keys, len(members[0].slots)
        self.tiles += members
        self.num_keys += length * len(members)
        real = np.concatenate([tile.real for tile in members])
        return TileCall(
            first=first,
            last=len(self.tiles),
            length=length,
            keys=keys,
            level=level,
            offset=offset,
            window=window,
            rows=self._tensor(np.concatenate([tile.rows for tile in members])[real]),
            places=self._tensor(np.flatnonzero(real)),
        )

    def _shared_call(self, level: int, rows: np.ndarray, slots: np.ndarray) -> SharedCall:
        start, stop = rows[0] // GRAIN * GRAIN, (rows[-1] // GRAIN + 1) * GRAIN
        runs = _runs(rows)
        dense = stop <= self.num_rows and len(runs) <= 4 and len(rows) >= 0.9 * (stop - start)
        return SharedCall(
            level=level,
            slots=_together(slots) or self._tensor(slots),
            start=int(start),
            stop=int(stop),
            runs=runs if dense else (),
            gather=None if dense else self._heads(_whole_grains(rows)),
            rows=self._tensor(rows),
        )

    def _heads(self, rows: np.ndarray) -> Tensor:
        return self._tensor(np.arange(self.num_heads)[:, None] * self.num_rows + rows)

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(self.device)


def _grains(rows: np.ndarray, slots: np.ndarray) -> list[_Tile]:
    padded = _whole_grains(rows).reshape(-1, GRAIN)
    real = (np.arange(padded.size) < len(rows)).reshape(-1, GRAIN)
    return [_Tile(rows, slots, real) for rows, real in zip(padded, real, strict=True)]


def _whole_grains(rows: np.ndarray) -> np.ndarray:
    """Rows, the last repeated up to a multiple of GRAIN."""
    return np.pad(rows, (0, -len(rows) % GRAIN), mode="edge")


def _stretches(values: np.ndarray) -> list[tuple[int, int]]:
    """(first, last) of the stretches of equal values."""
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return list(pairwise(edges))


def _runs(rows: np.ndarray) -> tuple[tuple[int, int], ...]:
    """(first, last) row numbers of the stretches of consecutive ones."""
    return tuple((int(rows[first]), int(rows[last - 1]) + 1) for first, last in _stretches(rows - np.arange(len(rows))))


def _together(slots: np.ndarray) -> slice | None:
    """The slice the slots are, if they are one."""
    first, last = int(slots[0]), int(slots[-1])
    if last - first == len(slots) - 1 and bool(np.all(np.diff(slots) == 1)):
        return slice(first, last + 1)
    return None
