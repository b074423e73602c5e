"""Which figures a ledger has, and what stands in them."""

from typing import TYPE_CHECKING

from reconcile.ledger import Component, Ledger
from reconcile.page_ledger import PageLedger
from reconcile.report.figures import (
    ForestRow,
    Outcome,
    ScoreLine,
    Step,
    forest_figure,
    items_of,
    outcomes_figure,
    scatter_figure,
    scores_figure,
    waterfall_figure,
)
from reconcile.report.names import FACTORS, SIDES, side_names
from reconcile.report.numbers import count, difference
from reconcile.report.svg import Figure
from reconcile.runs import Protocol

if TYPE_CHECKING:
    from reconcile.agreement import Agreement
    from reconcile.significance import Interval
    from reconcile.statistics import Statistics

_BESIDE_ITEMS = ("coverage", "rounding", "unexplained")
_ROUNDING_SHOWN = 1e-6


def ledger_figures(
    ledger: Ledger, statistics: "Statistics | None" = None, agreement: "Agreement | None" = None
) -> dict[str, Figure]:
    """The figures by name, in the order they are read; those without data are left out."""
    figures = [_scores(ledger, statistics), _waterfall(ledger)]
    if statistics is not None and len(statistics.subjects) > 1:
        figures.append(_forest(ledger, statistics))
    if agreement is not None:
        figures += [figure for figure in (_scatter(ledger), _subtasks(ledger, agreement)) if figure is not None]
        figures.append(_outcomes(ledger, agreement))
    return {figure.name: figure for figure in figures}


def page_figures(ledger: PageLedger) -> dict[str, Figure]:
    """The headline of a perplexity ledger: bits per byte, step by step."""
    bits, names = ledger.bits_per_byte, side_names(ledger.harnesses)
    steps = [
        Step(
            name=name if name in FACTORS else "template",
            label=name.replace("_", " "),
            net=value,
            up=0.0,
            down=0.0,
            note="",
        )
        for name, value in bits.components.items()
    ]
    pages = ledger.num_items["common"]
    figure = waterfall_figure(
        (names["lm_eval"], bits.lm_eval),
        (names["inspect"], bits.inspect),
        steps,
        unit="bits per byte of the original page",
        caption=(
            f"n = {count(pages, 'page')} that both scored. One unit on both sides; lower is better. "
            f"{page_protocols_text(ledger)}"
        ),
    )
    return {figure.name: figure}


def page_protocols_text(ledger: PageLedger) -> str:
    """What either side scored its pages as, for a caption."""
    names = side_names(ledger.harnesses)
    return " ".join(
        f"{_leading(names[side])}: {ledger.perplexities[side].text} text, {ledger.perplexities[side].window} window, "
        f"printed per {ledger.units[side]}."
        for side in SIDES
    )


def _leading(name: str) -> str:
    """A side's name where a sentence begins; a harness's own is written as the harness writes it."""
    return name[0].upper() + name[1:] if name.startswith("the ") else name


def protocol_text(protocol: Protocol) -> str:
    """A protocol in a few words, for a caption."""
    shots = f"{protocol.num_fewshot}-shot"
    if protocol.readout == "generate":
        return f"{protocol.template} template, {shots}, answers generated"
    return f"{protocol.template} template, {shots}, normalisation {protocol.normalisation}, ties {protocol.tie_break}"


def protocols_text(ledger: Ledger) -> str:
    """Both protocols, for a caption."""
    names = side_names(ledger.harnesses)
    return " ".join(f"{_leading(names[side])}: {protocol_text(ledger.protocols[side])}." for side in SIDES)


def _scores(ledger: Ledger, statistics: "Statistics | None") -> Figure:
    names = side_names(ledger.harnesses)
    lines = [
        ScoreLine(
            name=names[side],
            value=ledger.reported[side],
            bounds=None if statistics is None else _bounds(statistics.scores[side].interval),  # type: ignore[index]
        )
        for side in SIDES
    ]
    chance = None if statistics is None else float(statistics.chance["lm_eval"].level)
    whiskers = "Whiskers: 95 % intervals for other items like these. " if statistics is not None else ""
    caption = f"{items_of(ledger.num_items['common'])} that both scored. {whiskers}{protocols_text(ledger)}"
    return scores_figure(lines, chance=chance, caption=caption)


def _bounds(interval: "Interval | None") -> tuple[float, float] | None:
    return None if interval is None else (interval.low, interval.high)


def _waterfall(ledger: Ledger) -> Figure:
    names = side_names(ledger.harnesses)
    steps = [_step(component) for component in ledger.components if _is_shown(component)]
    caption = (
        f"{items_of(ledger.num_items['common'])} that both scored. Solid: the net share of each part (its Shapley "
        f"value), the gap being {difference(ledger.gap)}. Pale: what it moves up and down before that cancels. "
        f"{protocols_text(ledger)}"
    )
    return waterfall_figure(
        (names["lm_eval"], ledger.reported["lm_eval"]),
        (names["inspect"], ledger.reported["inspect"]),
        steps,
        caption=caption,
        unit="score: share of items right",
    )


def _is_shown(component: Component) -> bool:
    """Rounding in the last digit, and lines beside the items that are 0, have nothing to show."""
    if component.name in _BESIDE_ITEMS:
        return abs(component.value) >= _ROUNDING_SHOWN
    return True


def _step(component: Component) -> Step:
    acts = component.status == "acts" and component.name not in _BESIDE_ITEMS
    note = f"{component.items_up} up, {component.items_down} down" if acts else ""
    if component.status == "inert":
        note = "cannot act here"
    return Step(
        name=component.name,
        label=FACTORS.get(component.name, component.name),
        net=component.value,
        up=float(component.gross_up) if acts else 0.0,
        down=float(component.gross_down) if acts else 0.0,
        note=note,
    )


def _forest(ledger: Ledger, statistics: "Statistics") -> Figure:
    rows = [
        ForestRow(
            label=one.subject or "(no name)",
            num_items=one.num_items,
            gap=float(one.gap.value),
            bounds=_bounds(one.gap.interval),
        )
        for one in statistics.subjects
    ]
    number = items_of(ledger.num_items["common"])
    caption = (
        f"{number} in {count(len(rows), 'sub-task')}. Intervals of 95 %, each by itself: NOT adjusted for looking "
        "at all of them together (the table's p-values are). "
        f"{protocols_text(ledger)}"
    )
    return forest_figure(rows, overall=float(statistics.gap.value), caption=caption)


def _scatter(ledger: Ledger) -> Figure | None:
    """The notebook's picture: random sub-tasks, normalisation off and on."""
    from reconcile.agreement import normalisation_scatter
    from reconcile.coefficients import pearson

    number, size = 40, 5
    series = normalisation_scatter(ledger, num_subtasks=number, size=size)
    if not series:
        return None
    points = [point for found in series.values() for point in found]
    correlation = pearson([one for one, _ in points], [other for _, other in points])
    shown = "not defined" if correlation.value is None else f"{correlation.value:.3f}"
    left, right = ledger.protocols["lm_eval"], ledger.protocols["inspect"]
    labels = {
        "off": f"length normalisation off: {left.normalisation} on both sides",
        "on": f"length normalisation on: {right.normalisation} on both sides",
    }
    names = side_names(ledger.harnesses)
    return scatter_figure(
        series,
        names=(f"{names['lm_eval']}'s template", f"{names['inspect']}'s template"),
        labels=labels,
        title=f"Cross-harness agreement (Pearson r = {shown}, gap = {difference(ledger.gap)})",
        caption=(
            f"{count(number, 'random sub-task')} of {min(size, len(ledger.items.replayed))} items each (seed 1) out of "
            f"{items_of(ledger.num_items['replayed'])}; on the dashed line the two agree. Equal points are one larger "
            f"mark. {protocols_text(ledger)}"
        ),
    )


def _subtasks(ledger: Ledger, agreement: "Agreement") -> Figure | None:
    """The real sub-tasks, where there are enough of them."""
    from reconcile.agreement import FEWEST_SUBJECTS

    if len({left.subject for left, _ in ledger.items.pairs}) < FEWEST_SUBJECTS:
        return None
    names = side_names(ledger.harnesses)
    shown = "not defined" if agreement.pearson.value is None else f"{agreement.pearson.value:.3f}"
    return scatter_figure(
        {"off": list(agreement.points.values())},
        names=(names["lm_eval"], names["inspect"]),
        labels={"off": "a sub-task"},
        title=f"Sub-tasks under each harness's own protocol (Pearson r = {shown})",
        caption=(
            f"{count(len(agreement.points), 'sub-task')}, {items_of(agreement.num_items)}; on the dashed line the two "
            f"agree, and r = 1 still allows a constant offset. {protocols_text(ledger)}"
        ),
        name="subtasks",
    )


def outcome_labels(ledger: Ledger) -> dict[str, str]:
    """What each outcome is called."""
    names = side_names(ledger.harnesses)
    return {
        "both_right": "both right",
        "only_lm_eval": f"only {names['lm_eval']} right",
        "only_inspect": f"only {names['inspect']} right",
        "both_wrong_alike": "both wrong, same pick",
        "both_wrong_differently": "both wrong, other picks",
        "wrong_unknown": "both wrong, a pick not known",
        "partial": "credit between 0 and 1",
    }


def _outcomes(ledger: Ledger, agreement: "Agreement") -> Figure:
    outcomes = [
        Outcome(name=name, label=label, num_items=getattr(agreement.outcomes, name))
        for name, label in outcome_labels(ledger).items()
    ]
    caption = f"{items_of(agreement.num_items)} that both scored. {protocols_text(ledger)}"
    return outcomes_figure(outcomes, caption=caption)
