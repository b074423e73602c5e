"""What a report says, once: titled sections of sentences and tables that every rendering shares."""

from dataclasses import dataclass
from typing import Literal

Align = Literal["left", "right"]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of text under headers; `align` has one letter a column, l or r.

    `spare` names the headers of columns that a narrow terminal can do without, the first to go first.
    """

    headers: tuple[str, ...]
    align: str
    rows: tuple[tuple[str, ...], ...]
    spare: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        widths = {len(self.headers), len(self.align), *(len(row) for row in self.rows)}
        assert len(widths) == 1, f"a table of unequal rows: {widths}"


@dataclass(frozen=True, kw_only=True)
class Section:
    """A title, sentences, a table, sentences after it, commands to copy. `brief` ones go to the terminal too."""

    title: str
    sentences: tuple[str, ...] = ()
    table: Table | None = None
    after: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    brief: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.sentences or self.table or self.after or self.commands)
