"""Sections as Markdown."""

from collections.abc import Sequence

from reconcile.report.sections import Section, Table


def as_markdown(title: str, sections: Sequence[Section]) -> str:
    """The whole report; empty sections are left out."""
    blocks = [f"# {title}"]
    for section in sections:
        if section.is_empty:
            continue
        blocks.append(f"## {section.title}")
        blocks.extend(_sentence(sentence) for sentence in section.sentences)
        if section.table is not None:
            blocks.append(_table(section.table))
        blocks.extend(_sentence(sentence) for sentence in section.after)
        if section.commands:
            blocks.append("```\n" + "\n".join(section.commands) + "\n```")
    return "\n\n".join(blocks) + "\n"


def _sentence(text: str) -> str:
    return text.replace("|", "\\|") if text.startswith("|") else text


def _table(table: Table) -> str:
    rule = "".join("| ---: " if letter == "r" else "| --- " for letter in table.align) + "|"
    lines = [_row(table.headers), rule, *(_row(row) for row in table.rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
