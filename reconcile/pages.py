"""The common pages of two runs, scored in every combination of text and window that was run.

N(text, window) are the nats over the tokens scored, T(text, window) how many these are; text is the detokenised page
(lm-eval's) or the raw one (Inspect's), window how a page is cut to the model's context. W and B are the words and
bytes of the original page as lm-eval counts them. A logged float is an exact number, so all sums are fractions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from llm.errors import InputError
from reconcile.lattice import Factor, Switched, feasible_cells, shapley_values
from reconcile.runs import HarnessRun, ItemKey, PageRecord, Status

Unit = Literal["word", "byte", "token"]
TEXT, WINDOW, ENGINE = "text", "window", "engine"


def is_scored(page: PageRecord) -> bool:
    """Whether the page carries a sum of nats."""
    return page.nll is not None and page.status is not Status.ERRORED


def nats(pages: Iterable[PageRecord]) -> Fraction:
    """The pages' nats, added exactly."""
    return sum((Fraction(page.nll) for page in pages if page.nll is not None), Fraction(0))


def num_units(pages: Iterable[PageRecord], unit: Unit) -> int:
    """How many words, bytes or scored tokens the pages hold; InputError where a log does not count its tokens."""
    counts = [{"word": page.num_words, "byte": page.num_bytes, "token": page.num_tokens}[unit] for page in pages]
    if None in counts:
        raise InputError("a page's log does not say how many tokens were scored, so nats per token are not known")
    return sum(count for count in counts if count is not None)


def rate(pages: Sequence[PageRecord], unit: Unit) -> Fraction:
    """Nats per word, byte or scored token over some pages."""
    units = num_units(pages, unit)
    if units < 1:
        raise InputError(f"the pages hold {units} {unit}s, so nats per {unit} are not defined: leave empty pages out")
    return nats(pages) / units


@dataclass(frozen=True, kw_only=True)
class Lone:
    """Pages that one side scored and the other did not: absent there, or failed there."""

    only: tuple[PageRecord, ...]
    errored: tuple[PageRecord, ...]


@dataclass(frozen=True, kw_only=True)
class PageGrid:
    """The common pages in each feasible cell, in lm-eval's order.

    `joint` says that text and window differ and no cross cell was scored: the factor `text` then switches both.
    """

    factors: tuple[Factor, ...]
    cells: Mapping[Switched, tuple[PageRecord, ...]]
    joint: bool
    lm_eval: Lone
    inspect: Lone
    num_errored_both: int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(factor.name for factor in self.factors)

    @property
    def left(self) -> tuple[PageRecord, ...]:
        return self.cells[frozenset()]

    @property
    def right(self) -> tuple[PageRecord, ...]:
        return self.cells[frozenset(self.names)]

    def steps(self, unit: Unit) -> dict[str, Fraction]:
        """Each factor's Shapley share of the difference in nats per `unit`."""
        return shapley_values(self.factors, lambda cell: rate(self.cells[cell], unit))

    def page_steps(self, index: int) -> dict[str, Fraction]:
        """Each factor's share of one page's difference in nats."""
        return shapley_values(self.factors, lambda cell: nats(self.cells[cell][index : index + 1]))


def needs_cross(lm_eval: HarnessRun, inspect: HarnessRun) -> bool:
    """Whether two runs over pages differ in text and in windows: only further cells then tell their shares."""
    if not lm_eval.pages or not inspect.pages:
        return False
    one, other = lm_eval.pages[0], inspect.pages[0]
    return one.text != other.text and one.window != other.window


def build_page_grid(lm_eval: HarnessRun, inspect: HarnessRun, cross: Sequence[PageRecord] = ()) -> PageGrid:
    """Matches pages by content and lays out the cells between the two sides' native ones."""
    ours, theirs = _by_key(lm_eval.pages), _by_key(inspect.pages)
    shared = [key for key in ours if key in theirs]
    common = [key for key in shared if is_scored(ours[key]) and is_scored(theirs[key])]
    if not common:
        raise InputError(
            f"the two runs of {lm_eval.task!r} share no scored page ({len(ours)} and {len(theirs)} pages given): "
            "compare runs over the same data"
        )
    left, right = tuple(ours[key] for key in common), tuple(theirs[key] for key in common)
    factors, cells, joint = _lay_out(common, left, right, cross)
    return PageGrid(
        factors=factors,
        cells=cells,
        joint=joint,
        lm_eval=_lone(ours, theirs),
        inspect=_lone(theirs, ours),
        num_errored_both=sum(not is_scored(ours[key]) and not is_scored(theirs[key]) for key in shared),
    )


def _lay_out(
    common: Sequence[ItemKey], left: tuple[PageRecord, ...], right: tuple[PageRecord, ...], cross: Sequence[PageRecord]
) -> tuple[tuple[Factor, ...], dict[Switched, tuple[PageRecord, ...]], bool]:
    texts, windows = (left[0].text, right[0].text), (left[0].window, right[0].window)
    names = [name for name, pair in ((TEXT, texts), (WINDOW, windows)) if pair[0] != pair[1]]
    if not names:
        names = [ENGINE] if [page.nll for page in left] != [page.nll for page in right] else []
    factors = tuple(Factor(name=name) for name in names)
    cells = {frozenset(): left, frozenset(names): right}
    for cell in feasible_cells(factors):
        if cell in cells:
            continue
        text, window = texts[TEXT in cell], windows[WINDOW in cell]
        found = _by_key(page for page in cross if (page.text, page.window) == (text, window) and is_scored(page))
        if any(key not in found for key in common):
            return (Factor(name=TEXT),), {frozenset(): left, frozenset({TEXT}): right}, True
        cells[cell] = tuple(found[key] for key in common)
    return factors, cells, False


def _lone(own: Mapping[ItemKey, PageRecord], other: Mapping[ItemKey, PageRecord]) -> Lone:
    scored = [key for key in own if is_scored(own[key])]
    return Lone(
        only=tuple(own[key] for key in scored if key not in other),
        errored=tuple(own[key] for key in scored if key in other and not is_scored(other[key])),
    )


def _by_key(pages: Iterable[PageRecord]) -> dict[ItemKey, PageRecord]:
    return {page.key: page for page in pages}
