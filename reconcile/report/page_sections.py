"""A ledger of perplexities in words and tables: bits per byte first, the difference of units beside it."""

from fractions import Fraction
from typing import TYPE_CHECKING

from reconcile.page_ledger import PageLedger
from reconcile.recipe import Side, page_recipes
from reconcile.report.facts import RunFacts
from reconcile.report.ledger_sections import software_section
from reconcile.report.names import FACTORS, SIDES, side_names
from reconcile.report.numbers import NO_VALUE, count, interval, tiny, unsigned_interval
from reconcile.report.protocols_section import DIFFERS, Row, marked_rows, protocols_table
from reconcile.report.recipe_section import NO_COMMAND, as_asked, is_decoder, own_commands
from reconcile.report.sections import Section, Table

if TYPE_CHECKING:
    from reconcile.page_statistics import PageStatistics

_FEW_PAGES = 10
"""Below this many pages a bootstrap is known to be too sure of itself."""


def bits_section(ledger: PageLedger, statistics: "PageStatistics | None" = None) -> Section:
    """The headline: both sides in bits per byte of the original page."""
    bits, names = ledger.bits_per_byte, side_names(ledger.harnesses)
    found = {} if statistics is None else statistics.intervals
    rows = [
        (names["lm_eval"], _value(bits.lm_eval), unsigned_interval(found.get("lm_eval")), ""),
        (names["inspect"], _value(bits.inspect), unsigned_interval(found.get("inspect")), ""),
        ("gap", _signed(bits.gap), interval(found.get("gap")), f"{names['lm_eval']} − {names['inspect']}"),
        *((f"  {name.replace('_', ' ')}", _signed(value), "", "") for name, value in bits.components.items()),
    ]
    table = Table(
        headers=("bits per byte of the original page", "value", "95 % interval", ""), align="lrrl", rows=tuple(rows)
    )
    sentence = "One unit on both sides, so this is the comparison to read."
    return Section(
        title="Bits per byte", sentences=(sentence,), table=table, after=_interval_notes(statistics), brief=True
    )


def _interval_notes(statistics: "PageStatistics | None") -> tuple[str, ...]:
    """What the intervals are of, or why there are none."""
    if statistics is None:
        return ("Intervals need scipy: pip install 'harness-bridge[report]'",)
    if statistics.reason is not None:
        return (f"On these pages the gap is exact; there are no intervals: {statistics.reason}.",)
    few = (
        f" From {count(statistics.num_pages, 'page')} such intervals come out too narrow."
        if statistics.num_pages < _FEW_PAGES
        else ""
    )
    return (
        f"On these pages the gap is exact. The intervals are for other pages like these: {100 * statistics.level:g} % "
        f"by a paired bootstrap of {count(statistics.num_pages, 'page')}, {statistics.num_resamples:,} draws, "
        f"seed {statistics.seed}.{few}",
    )


def logarithms_section(ledger: PageLedger) -> Section:
    """ln of the perplexities as reported: their difference is mostly one of units."""
    units = ledger.units
    rows = [
        (f"ln {ledger.metric['lm_eval']}", repr(ledger.reported["lm_eval"]), f"nats per {units['lm_eval']}"),
        (f"ln {ledger.metric['inspect']}", repr(ledger.reported["inspect"]), f"nats per {units['inspect']}"),
        ("gap", _signed(ledger.gap), "a difference of units, not of models"),
    ]
    for component in ledger.components:
        shown = tiny(component.exact) if component.name == "rounding" else _signed(component.exact)
        note = component.reason or ""
        if component.status == "inert":
            note = f"cannot act here: {note}" if note else "cannot act here"
        if component.name in ("coverage", "rounding", "unexplained") and component.exact == 0:
            note = ""
        rows.append((f"  {FACTORS.get(component.name, component.name)}", shown, note))
    table = Table(headers=("", "value", ""), align="lrl", rows=tuple(rows))
    return Section(title="Perplexities as reported", table=table, brief=True)


def perplexities_section(ledger: PageLedger) -> Section:
    """Every perplexity of both sides, with the text each count came from."""
    rows = []
    for label, read in (
        ("pages", lambda side: str(side.num_pages)),
        ("text scored", lambda side: side.text),
        ("window", lambda side: side.window),
        ("nats", lambda side: _value(side.nats)),
        ("words (original page)", lambda side: str(side.num_words)),
        ("bytes (original page)", lambda side: str(side.num_bytes)),
        ("tokens (text scored)", lambda side: _count(side.num_tokens)),
        ("perplexity per word", lambda side: _value(side.word)),
        ("perplexity per byte", lambda side: _value(side.byte)),
        ("perplexity per token", lambda side: _value(side.token)),
        ("perplexity per page (geometric mean of the pages')", lambda side: _value(side.per_sequence)),
        ("bits per byte", lambda side: _value(side.bits_per_byte)),
    ):
        rows.append((label, *(read(ledger.perplexities[side]) for side in SIDES)))
    headers = ("", *side_names(ledger.harnesses).values())
    return Section(title="All perplexities", table=Table(headers=headers, align="lrr", rows=tuple(rows)))


def page_cells_section(ledger: PageLedger) -> Section:
    """Nats and tokens of every text and window over the common pages."""
    rows = tuple(
        (
            cell.text,
            cell.window,
            _value(float(cell.nats)),
            _count(cell.num_tokens),
            "off-path" if cell.native is None else f"{side_names(ledger.harnesses)[cell.native]}, its own",
        )
        for cell in ledger.cells
    )
    table = Table(headers=("text", "window", "nats", "tokens", ""), align="llrrl", rows=rows)
    return Section(title="Cells", table=table)


def page_coverage_section(ledger: PageLedger) -> Section:
    """Which pages each side scored."""
    numbers, names = ledger.num_items, side_names(ledger.harnesses)
    sentence = (
        f"{count(numbers['common'], 'page')} scored by both; {numbers['lm_eval_only']} by {names['lm_eval']} alone, "
        f"{numbers['inspect_only']} by {names['inspect']} alone."
    )
    lines = {name: value for name, value in ledger.coverage_lines.items() if value}
    rows = tuple((name.replace("_", " "), _signed(value)) for name, value in lines.items())
    table = Table(headers=("line", "net"), align="lr", rows=rows) if rows else None
    return Section(title="Coverage", sentences=(sentence, *ledger.faults), table=table, brief=True)


def page_protocols_sections(ledger: PageLedger, facts: RunFacts) -> list[Section]:
    """Both protocols side by side: what differs, which everyone reads, then what is the same or in one log only."""
    rows = marked_rows(_protocol_rows(ledger), facts)
    apart, others = [row for row in rows if row[3] == DIFFERS], [row for row in rows if row[3] != DIFFERS]
    limit = "all pages" if facts.limit is None else f"the first {count(facts.limit, 'page')}"
    sentence = f"Model {facts.model} ({facts.dtype or 'dtype not known'}); data {facts.data}, {limit}."
    agree = () if apart else ("In all that both logs say, the two sides are the same.",)
    table = protocols_table(apart, ledger.harnesses) if apart else None
    return [
        Section(title="Protocols", sentences=(sentence, *agree), table=table, brief=True),
        Section(title="Protocols: the same, or in one log only", table=protocols_table(others, ledger.harnesses)),
    ]


def _protocol_rows(ledger: PageLedger) -> list[Row]:
    """What decides a page's number, as far as the ledger knows it."""
    ours, theirs = (ledger.perplexities[side] for side in SIDES)
    return [
        ("text scored", ours.text, theirs.text),
        ("window", ours.window, theirs.window),
        ("metric", ledger.metric["lm_eval"], ledger.metric["inspect"]),
        ("nats per", ledger.units["lm_eval"], ledger.units["inspect"]),
    ]


def page_recipe_section(ledger: PageLedger, facts: RunFacts) -> Section:
    """The commands that make both sides score one text where this project's decoder answered on both, else what to set;
    a run that has one text on both needs none.
    """
    texts, names = {side: ledger.perplexities[side].text for side in SIDES}, side_names(ledger.harnesses)
    if texts["lm_eval"] == texts["inspect"]:
        return Section(title="Recipe")
    commands: list[str] = []
    for recipe in page_recipes(as_asked(facts), texts["lm_eval"], texts["inspect"]) if is_decoder(facts) else ():
        keeper: Side = "inspect" if recipe.changed == "lm_eval" else "lm_eval"
        commands += [f"# both score {names[keeper]}'s text ({texts[keeper]}), with nothing shared", recipe.prove]
        commands += own_commands(recipe, facts)
    if not commands:
        either = f"one text: {names['lm_eval']}'s is {texts['lm_eval']}, {names['inspect']}'s {texts['inspect']}"
        return Section(title="Recipe", sentences=(NO_COMMAND, f"Both sides would have to score {either}."), brief=True)
    sentence = (
        "To make the two agree, run these: the gap in bits per byte is then 0. What each harness prints stays in a "
        "unit of its own, so those two numbers differ even then."
    )
    return Section(title="Recipe", sentences=(sentence,), commands=tuple(commands))


def page_sections(ledger: PageLedger, facts: RunFacts, statistics: "PageStatistics | None" = None) -> list[Section]:
    """All sections of a perplexity ledger, in the order they are read."""
    return [
        bits_section(ledger, statistics),
        logarithms_section(ledger),
        page_coverage_section(ledger),
        perplexities_section(ledger),
        page_cells_section(ledger),
        page_recipe_section(ledger, facts),
        *page_protocols_sections(ledger, facts),
        Section(title="Notes", sentences=tuple(dict.fromkeys(ledger.notes)), brief=True),
        software_section(facts),
    ]


def _value(value: float | Fraction | None) -> str:
    return NO_VALUE if value is None else f"{float(value):.6f}"


def _signed(value: float | Fraction) -> str:
    return "0" if value == 0 else f"{float(value):+.6f}"


def _count(number: int | None) -> str:
    return NO_VALUE if number is None else str(number)
