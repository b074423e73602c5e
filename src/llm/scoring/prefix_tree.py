"""Which tokens to compute, in which order, and how long to keep each one's keys and values: pure Python, no torch.

Sorted sequences are a radix tree read depth first: beyond what it shares with the one before it, a sequence is the
next branch. So every distinct (prefix, token) stands once in one flat list, a pack is a slice of that list, and what
must be remembered between packs is the path to the next token and nothing else.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

Tokens = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Branch:
    """The tokens a sequence adds to the tree: positions start … len(tokens) - 1 of `tokens`, the first of them at
    flat index `first`. Position start - 1 lies on branch number `parent` (-1 for a root).
    """

    tokens: Tokens
    start: int
    first: int
    parent: int

    @property
    def last(self) -> int:
        """The flat index after the branch's last token."""
        return self.first + len(self.tokens) - self.start

    def flat(self, position: int) -> int:
        """The flat index of one of the branch's own positions."""
        return self.first + position - self.start


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """The part of a branch that is computed in one pack: positions start … stop - 1.

    `path` holds the slots of the keys and values of positions 0 … stop - 1 of its sequence, the chunk's own last.
    """

    start: int
    stop: int
    path: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pack:
    """One step: the tokens first … first + len(ids) - 1 of the flat list, with the slots they are kept in.

    Chunks stand in flat order; any of them may read another's keys and values, parents and children alike, since a
    layer's keys and values of the whole pack exist before its attention.
    """

    first: int
    ids: tuple[int, ...]
    positions: tuple[int, ...]
    slots: tuple[int, ...]
    chunks: tuple[Chunk, ...]


class PrefixTree:
    """The distinct tokens of `sequences` (none empty), depth first, each once; `len(tree)` counts them.

    `branches` stand in flat order; `branch_of[s]` is the number of the branch in which sequence s ends.
    """

    def __init__(self, sequences: Sequence[Tokens]) -> None:
        self.branches: list[Branch] = []
        self.branch_of = [0] * len(sequences)
        open_branches: list[int] = []
        previous: Tokens = ()
        for index in sorted(range(len(sequences)), key=sequences.__getitem__):
            tokens = sequences[index]
            if not tokens:
                raise ValueError(f"sequence {index} is empty: every sequence needs at least one token")
            start = common_length(previous, tokens)
            if start < len(tokens):
                self._add(tokens, start, open_branches)
            self.branch_of[index] = len(self.branches) - 1
            previous = tokens

    def __len__(self) -> int:
        return self.branches[-1].last if self.branches else 0

    @property
    def longest(self) -> int:
        """The length of the longest sequence."""
        return max((len(branch.tokens) for branch in self.branches), default=0)

    def flat_indices(self, sequence: int, start: int, stop: int) -> list[int]:
        """Flat indices of positions start … stop - 1 of sequence number `sequence`, in position order."""
        runs = []
        number = self.branch_of[sequence]
        while stop > start:
            branch = self.branches[number]
            if branch.start < stop:
                low = max(start, branch.start)
                runs.append(range(branch.flat(low), branch.flat(stop)))
                stop = low
            number = branch.parent
        return [index for run in reversed(runs) for index in run]

    def capacity(self, pack_tokens: int) -> int:
        """Slots that suffice for packs of that many tokens: a pack and the longest path to it."""
        return min(len(self), self.longest + pack_tokens)

    def packs(self, pack_tokens: int) -> Iterator[Pack]:
        """The flat list in slices of `pack_tokens` (the last may be shorter), with slots below `capacity`.

        A token's slot is given to another as soon as no later pack conditions on it.
        """
        slots = _Slots(self.capacity(pack_tokens))
        path: list[int] = []
        for first in range(0, len(self), pack_tokens):
            last = min(first + pack_tokens, len(self))
            retired: list[int] = []
            chunks: list[Chunk] = []
            taken: list[int] = []
            pieces = list(self._pieces(first, last))
            for _branch, start, stop in pieces:
                retired += _cut(path, start)
                fresh = slots.take(stop - start)
                path += fresh
                taken += fresh
                chunks.append(Chunk(start=start, stop=stop, path=tuple(path)))
            yield Pack(
                first=first,
                ids=tuple(token for branch, start, stop in pieces for token in branch.tokens[start:stop]),
                positions=tuple(position for _, start, stop in pieces for position in range(start, stop)),
                slots=tuple(taken),
                chunks=tuple(chunks),
            )
            slots.give(retired + _cut(path, self._conditioned_on(last)))

    def _add(self, tokens: Tokens, start: int, open_branches: list[int]) -> None:
        while open_branches and self.branches[open_branches[-1]].start >= start:
            open_branches.pop()
        parent = open_branches[-1] if open_branches else -1
        open_branches.append(len(self.branches))
        self.branches.append(Branch(tokens=tokens, start=start, first=len(self), parent=parent))

    def _pieces(self, first: int, last: int) -> Iterator[tuple[Branch, int, int]]:
        """(branch, start, stop) of the positions that make up flat indices first … last - 1."""
        number = bisect_right(self.branches, first, key=lambda branch: branch.first) - 1
        while first < last:
            branch = self.branches[number]
            until = min(last, branch.last)
            start = branch.start + first - branch.first
            yield branch, start, start + until - first
            first, number = until, number + 1

    def _conditioned_on(self, flat: int) -> int:
        """How many positions of the current path the token at flat index `flat` conditions on (0 at the end)."""
        if flat >= len(self):
            return 0
        _, start, _ = next(self._pieces(flat, flat + 1))
        return start


def common_length(first: Tokens, second: Tokens) -> int:
    """The number of leading tokens two sequences share."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _cut(path: list[int], length: int) -> list[int]:
    """Shorten `path` to `length` and return what was cut off."""
    rest = path[length:]
    del path[length:]
    return rest


class _Slots:
    """Numbers below `capacity`, the lowest free ones first, so that what is taken together mostly lies together."""

    def __init__(self, capacity: int) -> None:
        self._free = list(range(capacity))

    def take(self, count: int) -> list[int]:
        assert count <= len(self._free), "more slots asked for than the schedule's own capacity"
        return [heapq.heappop(self._free) for _ in range(count)]

    def give(self, slots: Iterable[int]) -> None:
        for slot in slots:
            heapq.heappush(self._free, slot)
