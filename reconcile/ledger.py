"""The ledger's records: what a gap is made of, in exact fractions, ready to print or to write."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from reconcile.choices import ChoiceTable
from reconcile.luck import Spread
from reconcile.runs import Protocol, SampleRecord

SCHEMA_VERSION = "1.0"

SideName = Literal["lm_eval", "inspect"]
ComponentStatus = Literal["acts", "inert", "not separable"]


@dataclass(frozen=True, kw_only=True)
class Component:
    """One line of the gap (lm-eval minus Inspect), in credit per common item.

    `items_up` and `items_down` count the items whose own share is above and below 0; `gross_up` and `gross_down` are
    those shares summed, so `exact` = gross_up + gross_down for a line that is made of items. `picks_changed` counts the
    items where switching the factor somewhere in the lattice picks another choice, right or wrong.
    """

    name: str
    exact: Fraction
    status: ComponentStatus = "acts"
    reason: str | None = None
    items_up: int = 0
    items_down: int = 0
    gross_up: Fraction = Fraction(0)
    gross_down: Fraction = Fraction(0)
    picks_changed: int = 0

    @property
    def value(self) -> float:
        return float(self.exact)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A protocol and the score it gives over the same `num_items` items. `scores` names the run whose choice scores
    it reads; normalisation and tie-break are None where the readout does not use them.
    """

    switched: tuple[str, ...]
    template: str
    scores: SideName
    normalisation: str | None
    tie_break: str | None
    readout: str
    exact: Fraction
    num_items: int
    native: SideName | None

    @property
    def off_path(self) -> bool:
        """Whether neither harness's own protocol is this one."""
        return self.native is None

    @property
    def name(self) -> str:
        """A name that is unique in its ledger: what was switched from lm-eval's protocol."""
        return "+".join(self.switched) or "lm_eval"


@dataclass(frozen=True, kw_only=True)
class Single:
    """The gap one factor makes alone, from each end; None where that protocol has no meaning."""

    factor: str
    from_lm_eval: Fraction | None
    from_inspect: Fraction | None


@dataclass(frozen=True, kw_only=True)
class Interaction:
    """How far some factors together differ from their parts: for two, v00 - v01 - v10 + v11, the other factors
    standing at lm-eval's or at Inspect's values.
    """

    factors: tuple[str, ...]
    from_lm_eval: Fraction | None
    from_inspect: Fraction | None


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Whether |gap| <= sum of |one-at-a-time gaps| holds from each end; interactions can break it."""

    gap: Fraction
    sum_from_lm_eval: Fraction | None
    sum_from_inspect: Fraction | None

    @property
    def holds_from_lm_eval(self) -> bool | None:
        return None if self.sum_from_lm_eval is None else abs(self.gap) <= self.sum_from_lm_eval

    @property
    def holds_from_inspect(self) -> bool | None:
        return None if self.sum_from_inspect is None else abs(self.gap) <= self.sum_from_inspect


@dataclass(frozen=True, kw_only=True)
class ReadoutSplit:
    """The readout component in its two exact parts, and what the unfound answers would have said to a lenient reader:
    `num_named` of `num_unfound` plainly name a choice in another form, `num_named_right` of those the right one.
    """

    no_answer_found: Fraction
    another_answer: Fraction
    num_unfound: int
    num_named: int
    num_named_right: int


@dataclass(frozen=True, kw_only=True)
class UnexplainedItem:
    """An item whose logged credit the rules do not give, or whose step between the protocols the logs do not show."""

    key: str
    occurrence: int
    subject: str
    side: Literal["lm_eval", "inspect", "both"]
    logged_lm_eval: Fraction
    logged_inspect: Fraction
    derived_lm_eval: Fraction | None
    derived_inspect: Fraction | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class ItemRow:
    """One common item: what each cell picks and credits, what each component owes to it (in credit of one item)."""

    key: str
    occurrence: int
    subject: str
    question: str
    gold: int
    logged_lm_eval: Fraction
    logged_inspect: Fraction
    picks: Mapping[str, int | None]
    credits: Mapping[str, Fraction]
    contributions: Mapping[str, Fraction]
    unexplained: str | None


@dataclass(frozen=True, kw_only=True)
class ItemTable:
    """The common items by columns. `replayed` (N,) are the positions in `pairs` of the M items the lattice covers;
    per-cell picks and credits and per-factor contributions have M rows, credits as numerators over `denominator`,
    contributions over `contribution_denominator`. `choices` are the M items' choice scores by side, None for a side
    that has none.
    """

    pairs: tuple[tuple[SampleRecord, SampleRecord], ...]
    logged_lm_eval: tuple[Fraction, ...]
    logged_inspect: tuple[Fraction, ...]
    replayed: NDArray[np.int64]
    picks: Mapping[str, NDArray[np.int64]]
    credits: Mapping[str, NDArray[np.object_]]
    denominator: int
    contributions: Mapping[str, NDArray[np.object_]]
    contribution_denominator: int
    choices: Mapping[SideName, ChoiceTable | None]
    reasons: Mapping[int, str] = field(default_factory=dict)

    @property
    def num_items(self) -> int:
        return len(self.pairs)

    def rows(self) -> Iterator[ItemRow]:
        """The items one by one, in lm-eval's order; an item outside the lattice has no cells."""
        place = {position: row for row, position in enumerate(self.replayed.tolist())}
        for position, (left, _) in enumerate(self.pairs):
            row = place.get(position)
            yield ItemRow(
                key=left.key.digest,
                occurrence=left.key.occurrence,
                subject=left.subject,
                question=left.question,
                gold=left.gold,
                logged_lm_eval=self.logged_lm_eval[position],
                logged_inspect=self.logged_inspect[position],
                picks={} if row is None else {name: _pick(column[row]) for name, column in self.picks.items()},
                credits=_fractions(self.credits, row, self.denominator),
                contributions=_fractions(self.contributions, row, self.contribution_denominator),
                unexplained=self.reasons.get(position),
            )


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """A gap accounted for: `gap` = the sum of `components`, exactly.

    Everything is lm-eval minus Inspect. `components` always holds template, length_normalisation, tie_break,
    coverage, rounding and unexplained, and tokenisation, engine and readout where they apply. `notes` are facts about
    the runs a reader must know; `faults` are run-level failures to explain (a reported value that its own credits do
    not give), which count against `accounted` like an unexplained item. `tie_break_spread` is the tie-break component
    over all seeds, where a side draws lots. `logits_dtypes` are what the logs say that logits were rounded to. Where no
    item can be replayed between the protocols, `cells` are the native two, and singles, interactions and closing sets
    are empty.
    """

    task: str
    metric: Mapping[str, str]
    reported: Mapping[str, float]
    reported_raw: Mapping[str, Mapping[str, float]]
    stderr: Mapping[str, float | None]
    protocols: Mapping[str, Protocol]
    harnesses: Mapping[str, str]
    logits_dtypes: Mapping[str, str | None]
    gap: Fraction
    components: tuple[Component, ...]
    coverage_lines: Mapping[str, Fraction]
    common_scores: Mapping[str, Fraction]
    cells: tuple[Cell, ...]
    one_at_a_time: tuple[Single, ...]
    interactions: tuple[Interaction, ...]
    bound: Bound
    closing_sets: Mapping[str, tuple[tuple[str, ...], ...]]
    readout_split: ReadoutSplit | None
    tie_break_spread: Spread | None
    num_items: Mapping[str, int]
    unexplained: tuple[UnexplainedItem, ...]
    items: ItemTable
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    def component(self, name: str) -> Component:
        """The component of that name; KeyError where this gap has none."""
        for component in self.components:
            if component.name == name:
                return component
        raise KeyError(f"no component {name!r} here: {', '.join(component.name for component in self.components)}")

    def cell(self, *switched: str) -> Cell:
        """The cell with these factors at Inspect's value; KeyError where it has no meaning or no scores."""
        for cell in self.cells:
            if set(cell.switched) == set(switched):
                return cell
        raise KeyError(f"no cell {switched!r} here: {', '.join(cell.name for cell in self.cells)}")

    @property
    def accounted(self) -> bool:
        """Whether nothing is unexplained: no item, no reported value."""
        return not self.unexplained and not self.faults


def _pick(value: np.int64) -> int | None:
    return None if value < 0 else int(value)


def _fractions(columns: Mapping[str, NDArray[np.object_]], row: int | None, denominator: int) -> dict[str, Fraction]:
    return {} if row is None else {name: Fraction(column[row], denominator) for name, column in columns.items()}
