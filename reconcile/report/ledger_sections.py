"""A multiple-choice ledger in words and tables."""

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from reconcile.ledger import Cell, Component, Ledger
from reconcile.report.facts import RunFacts
from reconcile.report.names import FACTORS, SIDES, side_names
from reconcile.report.numbers import count, difference, exact, fraction, interval, listed, score, tiny
from reconcile.report.protocols_section import marked_rows, protocols_table
from reconcile.report.sections import Section, Table
from reconcile.report.statistics_sections import statistics_sections
from reconcile.runs import Protocol

if TYPE_CHECKING:
    from reconcile.statistics import Statistics

_MOST_UNEXPLAINED = 20


def harness_name(ledger: Ledger, side: str) -> str:
    """The name of the harness on a side; Inspect's likelihood tasks are this project's, and are called so."""
    name = side_names(ledger.harnesses)[side]
    if ledger.harnesses[side] == "inspect" and ledger.protocols[side].readout == "loglikelihood":
        return f"{name} (this project's likelihood task)"
    return name


def gap_section(ledger: Ledger, statistics: "Statistics | None" = None) -> Section:
    """Both scores as the harnesses reported them, and the gap."""
    rows = []
    for side in SIDES:
        stderr = ledger.stderr[side]
        found = None if statistics is None else statistics.scores[side].interval  # type: ignore[index]
        rows.append(
            (
                harness_name(ledger, side),
                ledger.metric[side],
                repr(ledger.reported[side]),
                "" if found is None else f"[{found.low:.4f}, {found.high:.4f}]",
                "" if stderr is None else f"± {stderr:.4f}",
            )
        )
    names = side_names(ledger.harnesses)
    around = interval(statistics.gap.interval) if statistics is not None else ""
    rows.append(("gap", f"{names['lm_eval']} − {names['inspect']}", difference(ledger.gap), around, ""))
    table = Table(
        headers=("harness", "metric", "score as reported", "95 % interval", "its own standard error"),
        align="llrll",
        rows=tuple(rows),
        spare=("its own standard error", "metric"),
    )
    return Section(title="Scores", table=table, brief=True)


def components_section(ledger: Ledger, statistics: "Statistics | None") -> Section:
    """The components of the gap, net and gross; they add up to it exactly."""
    rows = [_component_row(component, statistics) for component in ledger.components]
    total = sum((component.exact for component in ledger.components), Fraction(0))
    rows.append(("sum = gap", difference(total), exact(total), "", "", "", "", ""))
    table = Table(
        headers=("component", "net", "exact", "95 % interval", "items up", "items down", "picks changed", ""),
        align="lrrlrrrl",
        rows=tuple(rows),
        spare=("exact", "picks changed", "95 % interval"),
    )
    return Section(title="What the gap is made of", table=table, after=(closing_sentence(ledger),), brief=True)


def _component_row(component: Component, statistics: "Statistics | None") -> tuple[str, ...]:
    shown = tiny if component.name == "rounding" else difference
    made_of_items = component.name not in ("coverage", "rounding", "unexplained")
    acts = component.status == "acts" and made_of_items
    return (
        FACTORS.get(component.name, component.name),
        shown(component.exact),
        "" if component.name == "rounding" else exact(component.exact),
        _interval(component, statistics),
        str(component.items_up) if acts else "",
        str(component.items_down) if acts else "",
        str(component.picks_changed) if acts else "",
        _component_note(component),
    )


def _component_note(component: Component) -> str:
    if component.name in ("coverage", "rounding", "unexplained") and component.exact == 0:
        return ""
    note = {"inert": "cannot act here", "not separable": "not separable"}.get(component.status, "")
    return f"{note}: {component.reason}" if note and component.reason else note or component.reason or ""


def _interval(component: Component, statistics: "Statistics | None") -> str:
    estimate = statistics.components.get(component.name) if statistics is not None else None
    return interval(estimate.interval) if estimate is not None and component.status == "acts" else ""


def closing_sentence(ledger: Ledger) -> str:
    """Names the smallest sets of factors that, switched from one end, give every item the other end's credit."""
    if not len(ledger.items.replayed):
        return "No item carries what the protocols in between need, so no part can be switched by itself."
    if ledger.closing_sets["from_lm_eval"] == ((),):
        return "No item's credit differs between the two protocols: there is nothing to switch."
    parts = [
        f"from the end of {name}, {_closing_sets(ledger.closing_sets[f'from_{side}'])}"
        for side, name in side_names(ledger.harnesses).items()
    ]
    return (
        f"The smallest sets of parts that, switched, make the two sides agree item by item: {'; '.join(parts)}. "
        "(A component's size is no guide to this.)"
    )


def _closing_sets(sets: tuple[tuple[str, ...], ...]) -> str:
    return ", or ".join(listed([FACTORS[name] for name in names]) for names in sets)


def readout_section(ledger: Ledger) -> Section:
    """The readout component in its two parts, where answers were generated."""
    split = ledger.readout_split
    if split is None:
        return Section(title="Readout")
    rows = (
        ("no answer found", difference(split.no_answer_found), exact(split.no_answer_found)),
        ("another answer", difference(split.another_answer), exact(split.another_answer)),
    )
    sentence = (
        f"In {count(split.num_unfound, 'generation')} no answer was found in the form asked for; {split.num_named} of "
        f"them plainly name a choice in another form, {split.num_named_right} of those the right one."
    )
    table = Table(headers=("part of the readout component", "net", "exact"), align="lrr", rows=rows)
    return Section(title="Readout", table=table, after=(sentence,), brief=True)


def coverage_section(ledger: Ledger) -> Section:
    """Which items each side scored, and what the others are worth."""
    numbers, names = ledger.num_items, side_names(ledger.harnesses)
    sentences = (
        f"{count(numbers['common'], 'item')} scored by both; {numbers['lm_eval_only']} by {names['lm_eval']} alone, "
        f"{numbers['inspect_only']} by {names['inspect']} alone.",
    )
    lines = {name: value for name, value in ledger.coverage_lines.items() if value}
    if not lines:
        return Section(title="Coverage", sentences=sentences, brief=True)
    rows = tuple((name.replace("_", " "), difference(value), exact(value)) for name, value in lines.items())
    table = Table(headers=("line", "net", "exact"), align="lrr", rows=rows)
    return Section(title="Coverage", sentences=sentences, table=table, brief=True)


def cells_section(ledger: Ledger) -> Section:
    """Every protocol between the two and its score over the common items."""
    rows = tuple(_cell_row(cell, side_names(ledger.harnesses)) for cell in ledger.cells)
    table = Table(
        headers=("template", "normalisation", "tie-break", "readout", "score", "exact", "n", ""),
        align="llllrrrl",
        rows=rows,
        spare=(*(("readout",) if len({row[3] for row in rows}) == 1 else ()), "exact", "n", ""),
    )
    sentence = "Scores over the common items, every part of the protocol at one side's or at the other's value."
    return Section(title="Cells", sentences=(sentence,), table=table, brief=True)


def _cell_row(cell: Cell, names: Mapping[str, str]) -> tuple[str, ...]:
    native = "off-path" if cell.native is None else f"{names[cell.native]}, its own"
    return (
        cell.template,
        cell.normalisation or "–",
        cell.tie_break or "–",
        cell.readout,
        score(cell.exact),
        fraction(cell.exact),
        str(cell.num_items),
        native,
    )


def one_at_a_time_section(ledger: Ledger) -> Section:
    """What each factor makes alone from either end, the interactions, and whether the bound holds."""
    singles = tuple(
        (FACTORS[single.factor], difference(single.from_lm_eval), difference(single.from_inspect))
        for single in ledger.one_at_a_time
    )
    if not singles:
        return Section(title="One factor at a time")
    pairs = tuple(
        (
            " × ".join(FACTORS[name] for name in interaction.factors),
            difference(interaction.from_lm_eval),
            difference(interaction.from_inspect),
        )
        for interaction in ledger.interactions
    )
    table = Table(
        headers=("switched", *(f"from {name}" for name in side_names(ledger.harnesses).values())),
        align="lrr",
        rows=(*singles, *pairs),
    )
    return Section(title="One factor at a time", table=table, after=(_bound_sentence(ledger),))


def _bound_sentence(ledger: Ledger) -> str:
    bound, names = ledger.bound, side_names(ledger.harnesses)
    said = []
    for total, holds, end in (
        (bound.sum_from_lm_eval, bound.holds_from_lm_eval, names["lm_eval"]),
        (bound.sum_from_inspect, bound.holds_from_inspect, names["inspect"]),
    ):
        if total is not None:
            said.append(f"{'holds' if holds else 'does not hold'} from the end of {end} (sum {score(total)})")
    if not said:
        return ""
    return f"The bound |gap| ≤ sum of the single gaps {' and '.join(said)}; interactions can break it."


def protocols_section(ledger: Ledger, facts: RunFacts) -> Section:
    """The two protocols side by side, differences first."""
    rows = marked_rows(_protocol_rows(ledger.protocols["lm_eval"], ledger.protocols["inspect"]), facts)
    return Section(title="Protocols", sentences=_settings(facts), table=protocols_table(rows, ledger.harnesses))


def _protocol_rows(left: Protocol, right: Protocol) -> list[tuple[str, str, str]]:
    names = ("template", "num_fewshot", "normalisation", "tie_break", "readout", "seed", "tie_atol", "chat_template")
    rows = []
    for name in names:
        if name == "seed" and "random" not in (left.tie_break, right.tie_break):
            continue
        rows.append((name.replace("_", "-"), str(getattr(left, name)), str(getattr(right, name))))
    return rows


def _settings(facts: RunFacts) -> tuple[str, ...]:
    limit = "all items" if facts.limit is None else f"the first {count(facts.limit, 'item')} of each sub-task"
    return (
        f"Model {facts.model} ({facts.dtype or 'dtype not known'}); data {facts.data}, {limit}.",
        "On these items the gap is exact; it says nothing by itself about other items."
        + (" The first items of a file are not a random sample." if facts.limit is not None else ""),
    )


def unexplained_section(ledger: Ledger) -> Section:
    """The items the rules do not explain, and reported values their own credits do not give."""
    sentences = list(ledger.faults)
    if not ledger.unexplained:
        return Section(title="Unexplained", sentences=tuple(sentences), brief=bool(sentences))
    shown = ledger.unexplained[:_MOST_UNEXPLAINED]
    rows = tuple(
        (
            item.key[:12],
            item.subject,
            {**side_names(ledger.harnesses), "both": "both"}[item.side],
            f"{item.logged_lm_eval} / {item.logged_inspect}",
            item.reason,
        )
        for item in shown
    )
    table = Table(headers=("item", "subject", "side", "logged credits", "why"), align="lllll", rows=rows)
    sentences.append(
        f"{count(len(ledger.unexplained), 'item is', 'items are')} unexplained; items.csv has all of them."
    )
    return Section(title="Unexplained", sentences=tuple(sentences), table=table, brief=True)


def notes_section(ledger: Ledger) -> Section:
    """Facts about the runs that a reader must know."""
    return Section(title="Notes", sentences=tuple(dict.fromkeys(ledger.notes)), brief=True)


def software_section(facts: RunFacts) -> Section:
    """What ran."""
    rows = tuple((name, version) for name, version in facts.versions.items())
    return (
        Section(title="Software", table=Table(headers=("package", "version"), align="ll", rows=rows))
        if rows
        else Section(title="Software")
    )


def ledger_sections(ledger: Ledger, facts: RunFacts, statistics: "Statistics | None" = None) -> list[Section]:
    """All sections of a multiple-choice ledger, in the order they are read; `statistics` where they were measured."""
    measured = statistics_sections(ledger, statistics) if statistics is not None else {}
    return [
        *measured.get("above", ()),
        gap_section(ledger, statistics),
        components_section(ledger, statistics),
        readout_section(ledger),
        coverage_section(ledger),
        unexplained_section(ledger),
        cells_section(ledger),
        one_at_a_time_section(ledger),
        *measured.get("below", ()),
        protocols_section(ledger, facts),
        notes_section(ledger),
        software_section(facts),
    ]
