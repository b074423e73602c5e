"""Packs of prompt tokens: each distinct token once, however many prompts begin with it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from llm.scoring.cached_attention import Segment
from llm.scoring.rows import Row, common_length


@dataclass(kw_only=True)
class PromptPack:
    """Flat tokens to be computed in one pass, at most `size` of them."""

    size: int
    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return len(self.ids) >= self.size

    def add(self, row: Row) -> bool:
        """Add what the row's prompt still lacks, as far as it fits; True if that was all of it."""
        start = row.num_cached
        mate, shared = self._mate(row.prompt, start)
        stop = min(len(row.prompt), shared + self.size - len(self.ids))
        known = mate.flat[start - mate.start : shared - mate.start] if mate is not None else ()
        flat = (*known, *range(len(self.ids), len(self.ids) + stop - shared))
        self.ids += row.prompt[shared:stop].tolist()
        self.positions += range(shared, stop)
        self.segments.append(Segment(tiles=tuple(row.tiles), start=start, owned=shared, stop=stop, flat=flat))
        self.rows.append(row)
        return stop == len(row.prompt)

    def last_tokens(self) -> Sequence[tuple[Row, int]]:
        """(row, flat index of its prompt's last token) for the rows whose prompt ends in this pack."""
        pairs = zip(self.rows, self.segments, strict=True)
        return [(row, segment.flat[-1]) for row, segment in pairs if segment.stop == len(row.prompt)]

    def _mate(self, prompt: np.ndarray, start: int) -> tuple[Segment | None, int]:
        """The segment that shares most of what is lacking, and up to which position it does."""
        best: tuple[Segment | None, int] = (None, start)
        for row, segment in zip(self.rows, self.segments, strict=True):
            if segment.start <= start:
                shared = min(common_length(prompt, row.prompt), segment.stop)
                if shared > best[1]:
                    best = (segment, shared)
        return best
