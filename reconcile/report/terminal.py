"""Sections on a terminal: rich tables as wide as it is, from 60 columns up; the same text without control codes in a
pipe.

A table that is too wide gives up its `spare` columns one by one; the report in the run's folder has them all. Then its
text columns wrap, and if that is not enough each row becomes a list: no number and no name is ever cut. Reasons that
would not fit beside their row stand in lines of their own below the table.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from reconcile.report.sections import Section, Table
from reconcile.report.texts import visible

_PIPE_WIDTH = 100
_LONGEST_NOTE = 20
_REASONS = ("", "why")
_GAP = 2
_READABLE_TEXT, _NARROWEST_TEXT = 20, 12


class _Stripped:
    """A stream that takes lines and writes them without the spaces at their ends."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        sys.stdout.write("\n".join(line.rstrip(" ") for line in text.split("\n")))
        return len(text)

    def flush(self) -> None:
        sys.stdout.flush()

    def isatty(self) -> bool:
        return False


def make_console() -> Console:
    """The console for standard output; a pipe has no width of its own, so it gets one that tables fit in."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(file=_Stripped(), width=_PIPE_WIDTH, highlight=False)  # type: ignore[arg-type]


def print_sections(console: Console, title: str, sections: Sequence[Section]) -> None:
    """Prints the brief sections."""
    console.print()
    console.print(Text(visible(title), style="bold"))
    for section in sections:
        if section.is_empty or not section.brief:
            continue
        console.print()
        console.print(Text(section.title, style="bold"))
        for sentence in section.sentences:
            console.print(Text(visible(sentence)))
        if section.table is not None:
            print_table(console, section.table)
        for sentence in section.after:
            console.print(Text(visible(sentence)))
        for command in section.commands:
            print_command(console, command)


def print_command(console: Console, command: str) -> None:
    """A command to copy: never wrapped, so that what is selected is what runs."""
    console.print(Text(f"  {visible(command)}"), soft_wrap=True)


def print_table(console: Console, table: Table) -> None:
    """A table that fits the console, the reasons of its rows below it where they are long."""
    table, notes = _without_long_notes(table)
    table = fitted(table, console.width)
    if _room(_least(table, _NARROWEST_TEXT), console.width) < 0:
        _print_lists(console, table)
    else:
        _print_columns(console, table, console.width)
    for name, note in notes:
        console.print(Padding(Text(f"{visible(name)}: {visible(note)}", style="dim"), (0, 0, 0, _GAP)))


def _print_columns(console: Console, table: Table, width: int, indent: int = 0) -> None:
    made = RichTable(
        box=None, pad_edge=False, header_style="dim", padding=(0, _GAP, 0, 0), show_header=any(table.headers)
    )
    for header, letter, place in zip(table.headers, table.align, widths(table, width - indent), strict=True):
        made.add_column(
            header, justify="right" if letter == "r" else "left", width=place, vertical="bottom", overflow="fold"
        )
    for row in table.rows:
        made.add_row(*(Text(visible(cell)) for cell in row))
    console.print(Padding(made, (0, 0, 0, indent), expand=False))


def _print_lists(console: Console, table: Table) -> None:
    """Each row as its name and, below it, a line for every other column."""
    for row in table.rows:
        console.print(Text(visible(row[0])))
        lines = tuple((header, cell) for header, cell in zip(table.headers[1:], row[1:], strict=True) if cell)
        _print_columns(console, Table(headers=("", ""), align="ll", rows=lines), console.width, indent=_GAP)


def _without_long_notes(table: Table) -> tuple[Table, list[tuple[str, str]]]:
    """The table without a last column of reasons, and those by the name of their row."""
    if table.headers[-1] not in _REASONS or max((cell_len(row[-1]) for row in table.rows), default=0) <= _LONGEST_NOTE:
        return table, []
    notes = [(row[0].strip(), row[-1]) for row in table.rows if row[-1]]
    return _without_column(table, len(table.headers) - 1), notes


def fitted(table: Table, width: int) -> Table:
    """The table without as many of its spare columns as it takes to fit `width`."""
    for name in table.spare:
        if _room(_least(table, _READABLE_TEXT), width) >= 0:
            break
        if name in table.headers:
            table = _without_column(table, table.headers.index(name))
    return table


def widths(table: Table, width: int) -> list[int]:
    """The width of each column: what it needs, then, as far as there is room, its longest text and its whole header in
    a line; the narrowest column that lacks something gets it first.
    """
    found = _least(table, _NARROWEST_TEXT)
    for wanted in (_least(table, _READABLE_TEXT), _cells(table), [cell_len(header) for header in table.headers]):
        for _ in range(_room(found, width)):
            short = [place for place, most in enumerate(wanted) if found[place] < most]
            if not short:
                break
            found[min(short, key=found.__getitem__)] += 1
    return found


def _room(columns: list[int], width: int) -> int:
    """What columns of these widths, and the gaps between them, leave of `width`."""
    return width - sum(columns) - _GAP * (len(columns) - 1)


def _least(table: Table, text: int) -> list[int]:
    """How narrow columns can be: headers in lines of a word each, what is not a number wrapped at `text`."""
    found = []
    for header, letter, cells in zip(table.headers, table.align, _cells(table), strict=True):
        words = max(map(cell_len, header.split()), default=0)
        found.append(max(words, min(cells, text) if letter == "l" else cells, 1))
    return found


def _cells(table: Table) -> list[int]:
    return [
        max((cell_len(visible(row[place])) for row in table.rows), default=0) for place in range(len(table.headers))
    ]


def _without_column(table: Table, place: int) -> Table:
    return replace(
        table,
        headers=(*table.headers[:place], *table.headers[place + 1 :]),
        align=table.align[:place] + table.align[place + 1 :],
        rows=tuple((*row[:place], *row[place + 1 :]) for row in table.rows),
    )
