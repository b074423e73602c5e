"""run.log in a run's folder: when each stage began, and how many requests were found in the store or computed.

It is the one file of a run that differs from one time to the next. An attempt that was cut off leaves its lines, and
the next attempt writes below them: the file of a finished run tells how often it was begun and what was computed twice.
"""

import contextlib
import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reconcile.run_folder import LOG_NAME

_ATTEMPT = re.compile(r"attempt (\d+) begins")
_COUNT = re.compile(r"(found|computed|stored) (\d+) requests")


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Requests of one attempt, and of its `largest` batch. `lost` were computed and not yet stored when it was cut off:
    one batch at most.
    """

    found: int = 0
    computed: int = 0
    stored: int = 0
    largest: int = 0

    @property
    def lost(self) -> int:
        return self.computed - self.stored


class RunLog:
    """Lines with the time of day; those written before `open` wait for it."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lines: list[str] = []

    def open(self, folder: Path, command: str) -> None:
        """Write to `folder` from here on, below what earlier attempts left."""
        path = folder / LOG_NAME
        number = len(read_attempts(path)) + 1
        waiting, self._lines, self._path = self._lines, [], path
        self.say(f"attempt {number} begins: {command}")
        self._write(waiting)

    def say(self, sentence: str) -> None:
        """One line; on disk when this returns, as far as a killed process is concerned."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._write([f"{now} {' '.join(sentence.split())}\n"])

    def count(self, what: str, number: int) -> None:
        """`found`, `computed` or `stored` so many requests."""
        if number:
            self.say(f"{what} {number} requests")

    def finish(self) -> None:
        """The sums over all attempts."""
        if self._path is None:
            return
        attempts = read_attempts(self._path)
        here = attempts[-1] if attempts else Counts()
        lost = sum(attempt.lost for attempt in attempts[:-1])
        self.say(
            f"finished in attempt {len(attempts)}: {here.found} found in the store, {here.computed} computed, "
            f"{lost} of them for the second time"
        )

    def _write(self, lines: Sequence[str]) -> None:
        if self._path is None:
            self._lines.extend(lines)
            return
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.writelines(lines)  # a full disk is the store's to report, who loses something by it


def read_attempts(path: Path) -> list[Counts]:
    """What each attempt found, computed and stored; [] without a log. A last line cut short is passed over."""
    if not path.is_file():
        return []
    attempts: list[dict[str, int]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if _ATTEMPT.search(line):
            attempts.append({})
        elif attempts and (count := _COUNT.search(line)):
            number = int(count[2])
            attempts[-1][count[1]] = attempts[-1].get(count[1], 0) + number
            if count[1] == "computed":
                attempts[-1]["largest"] = max(attempts[-1].get("largest", 0), number)
    return [Counts(**attempt) for attempt in attempts]
