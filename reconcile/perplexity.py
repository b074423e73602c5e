"""The gap between two perplexities of the same pages: in one unit, bits per byte, and as each harness prints it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from llm.errors import InputError
from reconcile.ledger import Component
from reconcile.page_ledger import BitsPerByte, PageCell, PageLedger, PageRow, Perplexities
from reconcile.pages import (
    ENGINE,
    TEXT,
    WINDOW,
    Lone,
    PageGrid,
    Unit,
    build_page_grid,
    is_scored,
    nats,
    num_units,
    rate,
)
from reconcile.reported import ROUNDING_LIMIT
from reconcile.runs import HarnessRun, PageRecord

LN2 = math.log(2)
COVERAGE_LINES = ("only_lm_eval", "only_inspect", "errored")

_UNITS: Mapping[str, Unit] = {
    "word_perplexity": "word",
    "byte_perplexity": "byte",
    "bits_per_byte": "byte",
    "perplexity_per_token": "token",
}


def decompose_pages(lm_eval: HarnessRun, inspect: HarnessRun, *, cross: Sequence[PageRecord] = ()) -> PageLedger:
    """The ledger of two runs over whole pages.

    `cross` are the same pages scored with one side's text and the other side's window, needed where both differ;
    without them text and window are switched in one step, which is said.

    Raises:
        InputError: the runs share no scored page, or one reports no perplexity.
    """
    grid = build_page_grid(lm_eval, inspect, cross)
    left, right = _estimator(lm_eval), _estimator(inspect)
    lines = _coverage_lines(grid, left, right)
    components = (
        *_step_components(grid, left.unit),
        _unit_component(grid, left.unit, right.unit),
        _line("tie_break", Fraction(0), "perplexities have no choices to tie"),
        _line("coverage", sum(lines.values(), Fraction(0)), "both sides average the same pages"),
        _line("rounding", left.rounding - right.rounding, None),
        _line("unexplained", left.fault - right.fault, "each reported value follows from its own pages"),
    )
    gap = left.reported - right.reported
    assert sum((component.exact for component in components), Fraction(0)) == gap, "the ledger does not close"
    return PageLedger(
        task=lm_eval.task,
        metric={"lm_eval": left.metric, "inspect": right.metric},
        units={"lm_eval": left.unit, "inspect": right.unit},
        reported={"lm_eval": float(left.reported), "inspect": float(right.reported)},
        reported_raw={"lm_eval": dict(lm_eval.reported), "inspect": dict(inspect.reported)},
        protocols={"lm_eval": lm_eval.protocol, "inspect": inspect.protocol},
        harnesses={"lm_eval": lm_eval.harness, "inspect": inspect.harness},
        gap=gap,
        components=components,
        coverage_lines=lines,
        cells=_cells(grid),
        bits_per_byte=_bits_per_byte(grid, left, right),
        perplexities={"lm_eval": _perplexities(left.scored), "inspect": _perplexities(right.scored)},
        num_items=_counts(grid),
        pages=_rows(grid),
        notes=(*lm_eval.notes, *inspect.notes),
        faults=tuple(side.complaint for side in (left, right) if side.fault),
    )


@dataclass(frozen=True, kw_only=True)
class _Estimator:
    """One run's ln perplexity per `unit`: as reported, and exactly over the pages it scored."""

    harness: str
    scored: tuple[PageRecord, ...]
    metric: str
    unit: Unit
    reported: Fraction
    exact: Fraction

    @property
    def _remainder(self) -> Fraction:
        return self.reported - self.exact

    @property
    def fault(self) -> Fraction:
        """What float arithmetic cannot explain of reported - exact."""
        return (
            self._remainder
            if abs(self._remainder) > ROUNDING_LIMIT * max(Fraction(1), abs(self.exact))
            else Fraction(0)
        )

    @property
    def rounding(self) -> Fraction:
        return self._remainder - self.fault

    @property
    def complaint(self) -> str:
        return (
            f"{self.harness} reports {self.metric} with logarithm {float(self.reported)!r}, "
            f"its pages give {float(self.exact)!r}"
        )


def _estimator(run: HarnessRun) -> _Estimator:
    metric, unit = _metric_of(run)
    value = run.reported[metric]
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"the {run.harness} run reports {metric} = {value!r}, which is no finite perplexity")
    log = value * LN2 if _stem(metric) == "bits_per_byte" else math.log(value)
    scored = tuple(page for page in run.pages if is_scored(page))
    return _Estimator(
        harness=run.harness,
        scored=scored,
        metric=metric,
        unit=unit,
        reported=Fraction(log),
        exact=rate(scored, unit),
    )


def _metric_of(run: HarnessRun) -> tuple[str, Unit]:
    """The reported perplexity to compare: the headline's, else the first of the known names that the run reports."""
    by_stem = {_stem(name): name for name in run.reported}
    for stem in (_stem(run.headline), *_UNITS):
        if stem in by_stem and stem in _UNITS:
            return by_stem[stem], _UNITS[stem]
    raise InputError(
        f"the {run.harness} run reports {', '.join(run.reported) or 'no value'}: one of {', '.join(_UNITS)} is needed"
    )


def _stem(metric: str) -> str:
    """A metric's bare name: lm-eval adds `,filter`, Inspect may put `scorer/` before."""
    return metric.partition(",")[0].rpartition("/")[2]


def _step_components(grid: PageGrid, unit: Unit) -> tuple[Component, ...]:
    steps = grid.steps(unit)
    shares = [grid.page_steps(index) for index in range(len(grid.left))]
    parts = []
    for factor, name in ((TEXT, "template"), (WINDOW, "window"), (ENGINE, "engine")):
        if factor in steps:
            parts.append(_step(name, steps[factor], [share[factor] for share in shares], grid.joint))
        elif name == "template":
            parts.append(_line(name, Fraction(0), "both sides score the same text"))
    return tuple(parts)


def _step(name: str, exact: Fraction, shares: Sequence[Fraction], joint: bool) -> Component:
    return Component(
        name=name,
        exact=exact,
        status="not separable" if joint else "acts",
        reason="text and window in one step: the pages were not scored with one side's text in the other side's window"
        if joint
        else None,
        items_up=sum(share > 0 for share in shares),
        items_down=sum(share < 0 for share in shares),
    )


def _unit_component(grid: PageGrid, ours: Unit, theirs: Unit) -> Component:
    if ours == theirs:
        return _line("length_normalisation", Fraction(0), f"both sides print nats per {ours}")
    exact = rate(grid.right, ours) - rate(grid.right, theirs)
    return Component(
        name="length_normalisation",
        exact=exact,
        reason=f"a difference of units: the same nats per {ours} and per {theirs}",
    )


def _line(name: str, exact: Fraction, reason_for_zero: str | None) -> Component:
    if exact:
        return Component(name=name, exact=exact)
    return Component(name=name, exact=exact, status="inert", reason=reason_for_zero)


def _coverage_lines(
    grid: PageGrid, left: _Estimator, right: _Estimator, unit: Unit | None = None
) -> dict[str, Fraction]:
    """(R_L - S_L) - (R_I - S_I) by set of pages; per side the sum of (N - S units) over a set, by all its units."""
    ours = _lone_lines(grid.lm_eval, grid.left, left, unit or left.unit)
    theirs = _lone_lines(grid.inspect, grid.right, right, unit or right.unit)
    return {
        "only_lm_eval": ours["only"],
        "only_inspect": -theirs["only"],
        "errored": ours["errored"] - theirs["errored"],
    }


def _lone_lines(lone: Lone, common: Sequence[PageRecord], side: _Estimator, unit: Unit) -> dict[str, Fraction]:
    shared, everything = rate(common, unit), num_units(side.scored, unit)
    return {
        name: (nats(pages) - shared * num_units(pages, unit)) / everything
        for name, pages in (("only", lone.only), ("errored", lone.errored))
    }


def _bits_per_byte(grid: PageGrid, left: _Estimator, right: _Estimator) -> BitsPerByte:
    ours, theirs = rate(left.scored, "byte"), rate(right.scored, "byte")
    steps = {**grid.steps("byte")}
    coverage = sum(_coverage_lines(grid, left, right, "byte").values(), Fraction(0))
    exact = {"gap": ours - theirs, **steps, "coverage": coverage}
    assert sum(steps.values(), coverage) == exact["gap"], "bits per byte do not close"
    return BitsPerByte(
        lm_eval=float(ours) / LN2,
        inspect=float(theirs) / LN2,
        gap=float(ours - theirs) / LN2,
        components={name: float(part) / LN2 for name, part in exact.items() if name != "gap"},
        exact=exact,
    )


def _perplexities(pages: Sequence[PageRecord]) -> Perplexities:
    counted = all(page.num_tokens for page in pages)
    per_page = [rate([page], "token") for page in pages] if counted else []
    return Perplexities(
        text=pages[0].text,
        window=pages[0].window,
        num_pages=len(pages),
        nats=float(nats(pages)),
        num_words=num_units(pages, "word"),
        num_bytes=num_units(pages, "byte"),
        num_tokens=num_units(pages, "token") if counted else None,
        word=_exp(rate(pages, "word")),
        byte=_exp(rate(pages, "byte")),
        bits_per_byte=float(rate(pages, "byte")) / LN2,
        token=_exp(rate(pages, "token")) if counted else None,
        per_sequence=_exp(sum(per_page, Fraction(0)) / len(per_page)) if counted else None,
    )


def _exp(value: Fraction) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _cells(grid: PageGrid) -> tuple[PageCell, ...]:
    ends: dict[frozenset[str], Literal["lm_eval", "inspect"]] = {
        frozenset(grid.names): "inspect",
        frozenset(): "lm_eval",
    }
    return tuple(
        PageCell(
            switched=tuple(name for name in grid.names if name in cell),
            text=pages[0].text,
            window=pages[0].window,
            nats=float(nats(pages)),
            num_tokens=_tokens(pages),
            num_pages=len(pages),
            native=ends.get(cell),
        )
        for cell, pages in grid.cells.items()
    )


def _tokens(pages: Iterable[PageRecord]) -> int | None:
    counts = [page.num_tokens for page in pages]
    return None if None in counts else sum(count for count in counts if count is not None)


def _counts(grid: PageGrid) -> dict[str, int]:
    return {
        "common": len(grid.left),
        "lm_eval_only": len(grid.lm_eval.only),
        "inspect_only": len(grid.inspect.only),
        "errored": len(grid.lm_eval.errored) + len(grid.inspect.errored) + grid.num_errored_both,
    }


def _rows(grid: PageGrid) -> tuple[PageRow, ...]:
    names = {cell: "+".join(name for name in grid.names if name in cell) or "lm_eval" for cell in grid.cells}
    return tuple(
        PageRow(
            key=left.key.digest,
            sample_id=left.sample_id,
            num_words=left.num_words,
            num_bytes=left.num_bytes,
            nats={names[cell]: float(nats(pages[index : index + 1])) for cell, pages in grid.cells.items()},
            num_tokens={names[cell]: pages[index].num_tokens for cell, pages in grid.cells.items()},
            lm_eval_status=left.status,
            inspect_status=right.status,
        )
        for index, (left, right) in enumerate(zip(grid.left, grid.right, strict=True))
    )
