"""Progress on standard error from the first second: a live bar on a terminal, plain lines in a pipe."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

_LINE_EVERY_SECONDS = 10.0
_BAR_EVERY_SECONDS = 0.1
_BAR_WIDTH = 30


class Progress:
    """Says which stage runs and how far it is. Written to the standard error there was when it was made."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream if stream is not None else _own_stderr()
        self._live = self.stream.isatty()
        self._started = time.monotonic()
        self._stage = ""
        self._shown = 0.0
        self._on_bar = False

    def say(self, sentence: str) -> None:
        """One line, with the seconds since the start."""
        self._end_bar()
        self.stream.write(f"[{time.monotonic() - self._started:6.1f} s] {sentence}\n")
        self.stream.flush()

    def begin(self, stage: str) -> None:
        """Names the stage that `advance` counts in."""
        self.say(stage)
        self._stage = stage
        self._shown = time.monotonic()

    def advance(self, done: int, total: int | None, unit: str) -> None:
        """How much of the stage is done, of how much where that is known; shown now and then, not at every call."""
        now = time.monotonic()
        if now - self._shown < (_BAR_EVERY_SECONDS if self._live else _LINE_EVERY_SECONDS):
            return
        self._shown = now
        counted = f"{done} {unit}" if total is None else f"{done} of {max(done, total)} {unit}"
        if not self._live:
            self.say(f"{self._stage}: {counted}")
            return
        filled = round(_BAR_WIDTH * min(1.0, done / max(total or 1, 1))) if total else 0
        bar = "█" * filled + "·" * (_BAR_WIDTH - filled)
        self.stream.write(f"\r{bar} {counted}\x1b[K")
        self.stream.flush()
        self._on_bar = True

    def _end_bar(self) -> None:
        if self._on_bar:
            self.stream.write("\r\x1b[K")
            self._on_bar = False


def _own_stderr() -> TextIO:
    """Standard error as a stream of its own, which stays where it is while `stderr_to` sends the other elsewhere."""
    try:
        return os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8", errors="replace")
    except (OSError, ValueError, AttributeError):
        return sys.stderr


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Sends what the process writes to standard error into a file: a harness's own bars, warnings and child processes.

    Nothing is lost: the file stays with the harness's logs. An exception passes through.
    """
    try:
        descriptor = sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(descriptor)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), descriptor)
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, descriptor)
        os.close(kept)
