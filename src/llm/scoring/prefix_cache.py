"""Which prefixes stay held from one call to the next: pure Python, no torch.

A few-shot prefix comes back with every batch of its subject. The cache has a fixed number of slots, numbered from 0;
an entry is a token path and the slots that hold its keys and values, entries that begin alike share slots, and the
entry used longest ago makes room first.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence

from llm.scoring.prefix_tree import PrefixTree, Slots, Tokens, common_length

LEAST = 32
"""A prefix of fewer tokens is not worth an entry."""
FEW = 4
"""In a call of at most so many sequences, one that shares nothing has its context kept: the next may share it."""


class PrefixCache:
    """Paths held in slots 0 … capacity - 1."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._entries: OrderedDict[Tokens, Slots] = OrderedDict()
        self._uses: Counter[int] = Counter()
        self._free = list(range(self.capacity))[::-1]

    @property
    def extent(self) -> int:
        """The slot after the last one held."""
        return max(self._uses, default=-1) + 1

    def known(self, sequences: Sequence[Tokens], limits: Sequence[int]) -> list[Slots]:
        """For each sequence the slots of its leading positions that are held, no more than `limits[s]` of them.

        Where one sequence's limit lies on a path, no other is served that path beyond it: the position there is
        computed again, once, for all. Entries that serve become the latest used.
        """
        served: list[Slots] = [()] * len(sequences)
        for path, slots in list(self._entries.items()):
            shared = [_shared(path, tokens) for tokens in sequences]
            inside = [limit for limit, length in zip(limits, shared, strict=True) if limit < length]
            usable = min(inside, default=len(path))
            for index, length in enumerate(shared):
                length = min(length, usable)
                if length > len(served[index]):
                    served[index] = slots[:length]
            if max(shared, default=0) >= LEAST:
                self._entries.move_to_end(path)
        return served

    def reserve(self, tree: PrefixTree, limits: Sequence[int]) -> dict[int, Slots]:
        """Slots for the tree's prefixes that are worth keeping: for each branch those of its leading computed tokens.

        The paths count as held from here on: who does not compute them must `clear`. Entries that serve the tree
        are never let go of for it.
        """
        in_use = {slot for branch in tree.branches for slot in branch.known}
        reserved: dict[int, Slots] = {}
        for number, length in _worth_keeping(tree, limits):
            path = tree.branches[number].tokens[:length]
            parts = list(tree.owners(number, length))[::-1]
            needs = {part: high - tree.branches[part].start for part, _, high in parts}
            missing = sum(max(0, need - len(reserved.get(part, ()))) for part, need in needs.items())
            if path in self._entries or not self._make_room(missing, in_use):
                continue
            slots: list[int] = []
            for part, low, high in parts:
                held = reserved.get(part, ())
                reserved[part] = held + tuple(self._free.pop() for _ in range(needs[part] - len(held)))
                slots += (*tree.branches[part].known, *reserved[part])[: high - low]
            in_use.update(slots)
            self._entries[path] = tuple(slots)
            self._uses.update(slots)
        return {part: slots for part, slots in reserved.items() if slots}

    def _make_room(self, count: int, in_use: set[int]) -> bool:
        """Whether `count` slots are free, after letting go of entries that hold none of those in use."""
        for path, slots in list(self._entries.items()):
            if len(self._free) >= count:
                break
            if in_use.isdisjoint(slots):
                self._let_go(path)
        return len(self._free) >= count

    def _let_go(self, path: Tokens) -> None:
        for slot in self._entries.pop(path):
            self._uses[slot] -= 1
            if not self._uses[slot]:
                del self._uses[slot]
                self._free.append(slot)


def _worth_keeping(tree: PrefixTree, limits: Sequence[int]) -> list[tuple[int, int]]:
    """(branch, length) of what branches share, the longest of each line only."""
    lengths = [branch.shared for branch in tree.branches]
    if len(tree.branches) <= FEW:
        for number, limit in zip(tree.branch_of, limits, strict=True):
            lengths[number] = max(lengths[number], limit)
    lengths = [length if length >= LEAST else 0 for length in lengths]
    around = [0, *lengths, 0]
    return [
        (number, length)
        for number, length in enumerate(lengths)
        if length and length >= around[number + 2] and (length > around[number] or len(tree.branches) <= FEW)
    ]


def _shared(path: Tokens, tokens: Tokens) -> int:
    """As common_length, and quick where the first tokens already differ."""
    first, head = path[:LEAST], tokens[:LEAST]
    return common_length(path, tokens) if first == head else common_length(first, head)
