"""Sections on a terminal: rich tables where there is one, the same text without control codes in a pipe."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from reconcile.report.sections import Section, Table

_PIPE_WIDTH = 120


def make_console() -> Console:
    """The console for standard output; a pipe has no width of its own, so it gets one that tables fit in."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False, soft_wrap=False)


def print_sections(console: Console, title: str, sections: Sequence[Section]) -> None:
    """Prints the brief sections."""
    console.print()
    console.print(Text(title, style="bold"))
    for section in sections:
        if section.is_empty or not section.brief:
            continue
        console.print()
        console.print(Text(section.title, style="bold"))
        for sentence in section.sentences:
            console.print(Text(sentence))
        if section.table is not None:
            console.print(_rich(section.table))
        for sentence in (*section.after, *(f"  {command}" for command in section.commands)):
            console.print(Text(sentence), soft_wrap=sentence.startswith("  "))


def _rich(table: Table) -> RichTable:
    made = RichTable(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for header, letter in zip(table.headers, table.align, strict=True):
        made.add_column(header, justify="right" if letter == "r" else "left")
    for row in table.rows:
        made.add_row(*(Text(cell) for cell in row))
    return made
