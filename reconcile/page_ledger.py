"""The records of a perplexity ledger: totals by cell, bits per byte, perplexities, and the gap's components."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from reconcile.ledger import Component
from reconcile.pages import Unit
from reconcile.runs import Protocol, Status


@dataclass(frozen=True, kw_only=True)
class PageCell:
    """Corpus totals of one (text, window) over the common pages; `native` names the side whose own it is."""

    switched: tuple[str, ...]
    text: str
    window: str
    nats: float
    num_tokens: int | None
    num_pages: int
    native: Literal["lm_eval", "inspect"] | None

    @property
    def off_path(self) -> bool:
        """Whether neither harness scores its pages like this."""
        return self.native is None


@dataclass(frozen=True, kw_only=True)
class BitsPerByte:
    """Both sides in one unit, bits per byte of the original page; `components` add up to `gap`.

    `exact` holds gap and components in nats per byte, as fractions: divide by ln 2.
    """

    lm_eval: float
    inspect: float
    gap: float
    components: Mapping[str, float]
    exact: Mapping[str, Fraction]


@dataclass(frozen=True, kw_only=True)
class Perplexities:
    """One side's perplexities over the pages it scored, with the text that was scored and all counts.

    Words and bytes are the original page's, tokens those scored. `per_sequence` is the geometric mean of the pages'
    perplexities per token. None where a log does not count tokens.
    """

    text: str
    window: str
    num_pages: int
    nats: float
    num_words: int
    num_bytes: int
    num_tokens: int | None
    word: float
    byte: float
    bits_per_byte: float
    token: float | None
    per_sequence: float | None


@dataclass(frozen=True, kw_only=True)
class PageRow:
    """One common page: the original's counts, nats and scored tokens by cell, and its status on each side."""

    key: str
    sample_id: str
    num_words: int
    num_bytes: int
    nats: Mapping[str, float]
    num_tokens: Mapping[str, int | None]
    lm_eval_status: Status
    inspect_status: Status


@dataclass(frozen=True, kw_only=True)
class PageLedger:
    """A difference of two perplexities accounted for. The headline is `bits_per_byte`, one unit on both sides.

    Beside it `gap` is lm-eval minus Inspect between the logarithms `reported` of what the harnesses print, each in its
    own unit: `template` (the text) and `window` are switched in lm-eval's unit, then `length_normalisation` is what the
    difference of units makes; `tie_break` is 0 by definition. `gap` = the sum of `components`, exactly.
    """

    task: str
    metric: Mapping[str, str]
    units: Mapping[str, Unit]
    reported: Mapping[str, float]
    reported_raw: Mapping[str, Mapping[str, float]]
    protocols: Mapping[str, Protocol]
    harnesses: Mapping[str, str]
    gap: Fraction
    components: tuple[Component, ...]
    coverage_lines: Mapping[str, Fraction]
    cells: tuple[PageCell, ...]
    bits_per_byte: BitsPerByte
    perplexities: Mapping[str, Perplexities]
    num_items: Mapping[str, int]
    pages: tuple[PageRow, ...]
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    def component(self, name: str) -> Component:
        """The component of that name; KeyError where this gap has none."""
        for component in self.components:
            if component.name == name:
                return component
        raise KeyError(f"no component {name!r} here: {', '.join(component.name for component in self.components)}")

    @property
    def accounted(self) -> bool:
        """Whether both reported values follow from their own pages."""
        return not self.faults
