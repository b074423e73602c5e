"""Two protocols side by side: the parts that a ledger knows, then what each log says of its run, differences first."""

from collections.abc import Iterable, Mapping, Sequence

from reconcile.report.facts import RunFacts
from reconcile.report.names import SIDES, side_names
from reconcile.report.numbers import NO_VALUE
from reconcile.report.sections import Table

Row = tuple[str, str, str]
"""A part, lm-eval's value, Inspect's value."""

DIFFERS = "differs"
_ORDER = (DIFFERS, "", "one log only")


def marked_rows(parts: Iterable[Row], facts: RunFacts) -> list[tuple[str, str, str, str]]:
    """The rows of a ledger's own parts and of both logs' settings, each with a word on whether its values differ."""
    rows = [(*row, _mark(row)) for row in (*parts, *_setting_rows(facts))]
    return sorted(rows, key=lambda row: _ORDER.index(row[3]))


def protocols_table(rows: Sequence[tuple[str, str, str, str]], harnesses: Mapping[str, str]) -> Table:
    """Marked rows under the names of both sides."""
    return Table(headers=("part", *side_names(harnesses).values(), ""), align="llll", rows=tuple(rows))


def _setting_rows(facts: RunFacts) -> list[Row]:
    """What the logs say about their runs."""
    ours, theirs = (facts.settings.get(side, {}) for side in SIDES)
    names = dict.fromkeys((*ours, *theirs))
    return [(name.replace("_", "-"), ours.get(name, NO_VALUE), theirs.get(name, NO_VALUE)) for name in names]


def _mark(row: Row) -> str:
    """What only one log says is no difference that is known."""
    if NO_VALUE in row[1:]:
        return "one log only"
    return "" if row[1] == row[2] else DIFFERS
