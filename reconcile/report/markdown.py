"""Sections as GitHub-flavoured Markdown that fits a pull request: the answer open, everything else folded.

Texts from data or models are escaped: no tag, no link, no mention of anyone comes out of them.
"""

import re
from collections.abc import Sequence

from reconcile.report.sections import Section, Table
from reconcile.report.texts import visible

MOST_LINES = 199
_ROWS_TRIED = (60, 40, 30, 20, 12, 8, 5, 3, 1)
_FEWEST_OPEN = 12


def as_markdown(title: str, sections: Sequence[Section], *, lead: Sequence[str] = ()) -> str:
    """The whole report in at most `MOST_LINES` lines: `lead` and the brief sections open, the others folded, long
    tables cut to what fits, each saying how much it leaves out. Empty sections are left out.
    """
    for most_rows in _ROWS_TRIED:
        text = _rendered(title, sections, lead, most_rows)
        if text.count("\n") <= MOST_LINES:
            return text
    lines = _rendered(title, [section for section in sections if section.brief], lead, 1).splitlines()
    return "\n".join([*lines[: MOST_LINES - 2], "", "(the rest is in report.html)"]) + "\n"


def _rendered(title: str, sections: Sequence[Section], lead: Sequence[str], most_rows: int) -> str:
    shown = [section for section in sections if not section.is_empty]
    blocks = [f"# {plain(title)}"]
    if lead:
        blocks.append("\n>\n".join(f"> {plain(sentence)}" for sentence in lead))
    for section in shown:
        if section.brief or section.commands:
            blocks += [f"## {plain(section.title)}", *_body(section, max(most_rows, _FEWEST_OPEN))]
    for section in shown:
        if not (section.brief or section.commands):
            summary = f"<details><summary>{plain(section.title)}</summary>"
            blocks += [summary, *_body(section, most_rows), "</details>"]
    return "\n\n".join(blocks) + "\n"


def _body(section: Section, most_rows: int) -> list[str]:
    blocks = [plain(sentence) for sentence in section.sentences]
    if section.table is not None:
        blocks.append(_table(section.table, most_rows))
        left_out = len(section.table.rows) - most_rows
        if left_out > 0:
            blocks.append(f"… and {left_out} more rows, which report.html has.")
    blocks += [plain(sentence) for sentence in section.after]
    if section.commands:
        blocks.append(_fenced("\n".join(visible(command) for command in section.commands)))
    return blocks


def _fenced(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{text}\n{fence}"


def _table(table: Table, most_rows: int) -> str:
    rule = "".join("| ---: " if letter == "r" else "| --- " for letter in table.align) + "|"
    return "\n".join([_row(table.headers), rule, *(_row(row) for row in table.rows[:most_rows])])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(plain(cell) for cell in cells) + " |"


def plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line: tags, links, emphasis, mentions and cell borders disarmed."""
    flat = " ".join(visible(text).split())
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    flat = re.sub(r"([\\`|*~])", r"\\\1", flat).replace("](", "]\\(")
    flat = re.sub(r"(?<![\w.])@(?=\w)", "@<!-- -->", flat)
    flat = re.sub(r"(?<!\w)#(?=\d)", "#<!-- -->", flat)
    return re.sub(r"^([#+=-])(?=\s|\1|$)", r"\\\1", flat)
