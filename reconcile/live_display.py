"""The live progress display of a terminal: a row a harness, all in one place, as wide as the terminal is."""

from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn
from rich.text import Text

from reconcile.progress import clock

_BAR_FROM_COLUMNS = 80
"""Below this width the numbers need the room of the bar and of their unit."""


class LiveDisplay:
    """Rows that wait, run and end; lines said meanwhile scroll past above them."""

    def __init__(self, stream: TextIO, rows: Sequence[str]) -> None:
        self._console = Console(file=stream, highlight=False)
        columns: list[ProgressColumn] = [TextColumn("{task.description}"), TextColumn("{task.fields[numbers]}")]
        self._is_wide = self._console.width >= _BAR_FROM_COLUMNS
        if self._is_wide:
            columns.insert(1, BarColumn(bar_width=max(12, min(30, self._console.width - 68)), style="dim"))
        self._progress = Progress(
            *columns,
            console=self._console,
            refresh_per_second=8,
            redirect_stdout=False,  # the harnesses' own redirections must keep working below this one
            redirect_stderr=False,
        )
        self._rows: dict[str, TaskID] = {}
        for row in rows:
            self._add(row)
        self._progress.start()

    def begin(self, row: str) -> None:
        """The row begins to run."""
        if row not in self._rows:
            self._add(row)
        self._progress.start_task(self._rows[row])
        self._progress.update(self._rows[row], numbers="starting")

    def show(
        self, row: str, done: int, total: int | None, *, rate: float | None, left: float | None, stored: int
    ) -> None:
        """The row's state: requests done, of how many; tokens a second; seconds left; how many came from the store."""
        parts = [f"{done:,}" if total is None else f"{done:,}/{max(done, total):,}"]
        parts[0] += " requests" if self._is_wide else ""
        parts += [f"{rate:,.0f} tok/s"] if rate else []
        parts += [f"{stored:,} cached"] if stored else []
        parts += [f"{clock(left)} left"] if left else []
        self._progress.update(self._rows[row], completed=done, total=total, numbers=" · ".join(parts))

    def end(self, row: str) -> None:
        """The row is done: its bar is full, whether or not its length was known."""
        task = next(task for task in self._progress.tasks if task.id == self._rows[row])
        done = task.completed or 1
        numbers = "done" if task.fields["numbers"] == "starting" else task.fields["numbers"]
        self._progress.update(self._rows[row], completed=done, total=done, numbers=numbers)

    def say(self, line: str) -> None:
        """A line above the rows."""
        self._console.print(Text(line, style="dim"), soft_wrap=True)

    def close(self) -> None:
        """Leaves the rows standing as they are and gives the terminal back."""
        self._progress.stop()

    def _add(self, row: str) -> None:
        self._rows[row] = self._progress.add_task(row, start=False, total=None, numbers="waiting")
