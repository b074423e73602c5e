"""Which tokens to compute, in which order, and how long to keep each one's keys and values: pure Python, no torch.

Sorted sequences are a radix tree read depth first: beyond what it shares with the one before it, a sequence is the
next branch. So every distinct (prefix, token) stands once in one flat list, a pack is a slice of that list, and what
must be remembered between packs is the path to the next token and nothing else.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Tokens = tuple[int, ...]
Slots = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Branch:
    """The tokens a sequence adds to the tree.

    Positions before `shared` lie on earlier branches, position shared - 1 on branch number `parent` (-1 for a root).
    Positions shared … start - 1 are held already, in the `known` slots. Positions start … len(tokens) - 1 are to be
    computed, the first of them at flat index `first`.
    """

    tokens: Tokens
    shared: int
    known: Slots
    first: int
    parent: int

    @property
    def start(self) -> int:
        """The first position to compute."""
        return self.shared + len(self.known)

    @property
    def last(self) -> int:
        """The flat index after the branch's last token."""
        return self.first + len(self.tokens) - self.start

    def flat(self, position: int) -> int:
        """The flat index of one of the branch's computed positions (or the one after its last)."""
        assert position >= self.start, "a held position has no flat index"
        return self.first + position - self.start


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """The part of a branch that is computed in one pack: positions start … stop - 1.

    `path` holds the slots of the keys and values of positions 0 … stop - 1 of its sequence, the chunk's own last.
    """

    start: int
    stop: int
    path: Slots


@dataclass(frozen=True, kw_only=True, slots=True)
class Pack:
    """One step: the tokens first … first + len(ids) - 1 of the flat list, with the slots they are kept in.

    Chunks stand in flat order; any of them may read another's keys and values, parents and children alike, since a
    layer's keys and values of the whole pack exist before its attention.
    """

    first: int
    ids: tuple[int, ...]
    positions: tuple[int, ...]
    slots: Slots
    chunks: tuple[Chunk, ...]

    @property
    def last(self) -> int:
        """The flat index after the pack's last token."""
        return self.first + len(self.ids)


class PrefixTree:
    """The distinct tokens of `sequences` (none empty) that are to be computed, depth first, each once.

    `known[s]`, where given, are the slots that hold the leading positions of sequence s, never all of them.
    `len(tree)` counts tokens; `branches` stand in flat order; `branch_of[s]` is the branch in which sequence s ends.
    """

    def __init__(self, sequences: Sequence[Tokens], known: Sequence[Slots] = ()) -> None:
        self.branches: list[Branch] = []
        self.branch_of = [0] * len(sequences)
        self.longest = max(map(len, sequences), default=0)
        open_branches: list[int] = []
        previous: Tokens = ()
        for index in sorted(range(len(sequences)), key=sequences.__getitem__):
            tokens = sequences[index]
            if not tokens:
                raise ValueError(f"sequence {index} is empty: every sequence needs at least one token")
            shared = common_length(previous, tokens)
            if shared < len(tokens):
                self._add(tokens, shared, known[index][shared:] if known else (), open_branches)
            self.branch_of[index] = len(self.branches) - 1
            previous = tokens

    def __len__(self) -> int:
        return self.branches[-1].last if self.branches else 0

    def flat_indices(self, sequence: int, start: int, stop: int) -> list[int]:
        """Flat indices of positions start … stop - 1 of sequence number `sequence`, in position order.

        None of these positions may be held already.
        """
        runs = []
        for number, low, high in self.owners(self.branch_of[sequence], stop):
            if high > start:
                branch = self.branches[number]
                runs.append(range(branch.flat(max(start, low)), branch.flat(high)))
        return [index for run in reversed(runs) for index in run]

    def owners(self, number: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(branch, low, high), last first: the branches on which positions low … high - 1 before `stop` lie, of the
        sequence that ends in branch `number`.
        """
        while stop > 0:
            branch = self.branches[number]
            if branch.shared < stop:
                yield number, branch.shared, stop
                stop = branch.shared
            number = branch.parent

    def capacity(self, pack_tokens: int) -> int:
        """Slots that suffice for packs of that many tokens: a pack and the longest path to it."""
        return min(len(self), self.longest + pack_tokens)

    def packs(
        self, pack_tokens: int, *, first_slot: int = 0, reserved: Mapping[int, Slots] | None = None
    ) -> Iterator[Pack]:
        """The flat list in slices of `pack_tokens` (the last may be shorter).

        Slots are `first_slot` … first_slot + capacity - 1; a token's slot is given to another as soon as no later
        pack conditions on it. A branch's leading computed tokens go to its `reserved` slots, lower ones, which stay.
        """
        slots = _Slots(first_slot, self.capacity(pack_tokens))
        reserved = reserved or {}
        path: list[int] = []
        for first in range(0, len(self), pack_tokens):
            last = min(first + pack_tokens, len(self))
            retired: list[int] = []
            chunks: list[Chunk] = []
            taken: list[int] = []
            pieces = list(self._pieces(first, last))
            for number, start, stop in pieces:
                branch = self.branches[number]
                if start == branch.start:
                    retired += _cut(path, branch.shared)
                    path += branch.known
                kept = reserved.get(number, ())[start - branch.start : stop - branch.start]
                fresh = [*kept, *slots.take(stop - start - len(kept))]
                path += fresh
                taken += fresh
                chunks.append(Chunk(start=start, stop=stop, path=tuple(path)))
            tokens = [(self.branches[number].tokens, start, stop) for number, start, stop in pieces]
            yield Pack(
                first=first,
                ids=tuple(token for ids, start, stop in tokens for token in ids[start:stop]),
                positions=tuple(position for _, start, stop in tokens for position in range(start, stop)),
                slots=tuple(taken),
                chunks=tuple(chunks),
            )
            slots.give(retired + _cut(path, self._conditioned_on(last)))

    def _add(self, tokens: Tokens, shared: int, known: Slots, open_branches: list[int]) -> None:
        while open_branches and self.branches[open_branches[-1]].shared >= shared:
            open_branches.pop()
        parent = open_branches[-1] if open_branches else -1
        open_branches.append(len(self.branches))
        assert shared + len(known) < len(tokens), "a sequence is never held whole"
        self.branches.append(Branch(tokens=tokens, shared=shared, known=known, first=len(self), parent=parent))

    def _pieces(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """(branch number, start, stop) of the positions that make up flat indices first … last - 1."""
        number = bisect_right(self.branches, first, key=lambda branch: branch.first) - 1
        while first < last:
            branch = self.branches[number]
            until = min(last, branch.last)
            start = branch.start + first - branch.first
            yield number, start, start + until - first
            first, number = until, number + 1

    def _conditioned_on(self, flat: int) -> int:
        """How much of the current path the token at flat index `flat` and later ones need (nothing at the end)."""
        if flat >= len(self):
            return 0
        number, start, _ = next(self._pieces(flat, flat + 1))
        branch = self.branches[number]
        return branch.shared if start == branch.start else start


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
    """Numbers first … first + count - 1, the lowest free ones first: what is taken together mostly lies together."""

    def __init__(self, first: int, count: int) -> None:
        self._first = first
        self._free = list(range(first, first + count))

    def take(self, count: int) -> list[int]:
        assert count <= len(self._free), "more slots asked for than the schedule's own capacity"
        return [heapq.heappop(self._free) for _ in range(count)]

    def give(self, slots: Iterable[int]) -> None:
        """Take slots back; those below the first are not this range's and stay taken."""
        for slot in slots:
            if slot >= self._first:
                heapq.heappush(self._free, slot)
