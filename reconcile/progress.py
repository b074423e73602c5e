"""Progress on standard error from the first second.

One live display over both harnesses on a terminal, plain lines in a pipe, nothing when quiet.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from reconcile.live_display import LiveDisplay

_LINE_EVERY_SECONDS = 10.0
_BAR_EVERY_SECONDS = 0.1


class Progress:
    """Says which stage runs and how far it is, on the standard error there was when it was made.

    A context manager: leaving it closes the live display, whatever happened.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self.stream = stream if stream is not None else _own_stderr()
        self._quiet = quiet
        self._live = not quiet and self.stream.isatty() and os.environ.get("TERM") != "dumb"
        self._display: LiveDisplay | None = None
        self._started = time.monotonic()
        self._stage = ""
        self._row = ""
        self._work: tuple[int, int | None, str, int, float, int] | None = None
        self._shown = 0.0
        self._is_news = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def say(self, sentence: str) -> None:
        """One line, with the seconds since the start."""
        self._end_stage()
        self._write(sentence)

    def plan(self, *rows: str) -> None:
        """Names the rows of one live display, before the first of them begins."""
        self.close()
        if self._live:
            from reconcile.live_display import LiveDisplay

            self._display = LiveDisplay(self.stream, rows)

    def begin(self, stage: str, row: str | None = None) -> None:
        """Names the stage that `advance` counts in, and the row of the live display it is shown in."""
        self._end_stage()
        self._stage, self._row = stage, row or stage
        self._shown = time.monotonic()
        if self._live:
            if self._display is None:
                self.plan(self._row)
            assert self._display is not None
            self._display.begin(self._row)
        else:
            self._write(stage)

    def advance(
        self, done: int, total: int | None, unit: str, *, tokens: int = 0, seconds: float = 0.0, stored: int = 0
    ) -> None:
        """How much of the stage is done, of how much where that is known; shown now and then, not at every call.

        Args:
            tokens: how many tokens were scored for it, in `seconds` of scoring.
            stored: how many of those done came from the store.
        """
        self._work = (done, total, unit, tokens, seconds, stored)
        self._is_news = True
        now = time.monotonic()
        if now - self._shown < (_BAR_EVERY_SECONDS if self._live else _LINE_EVERY_SECONDS):
            return
        self._shown = now
        self._show()

    def close(self) -> None:
        """Ends the live display, its last state left standing."""
        self._end_stage()
        if self._display is not None:
            self._display.close()
            self._display = None

    def _show(self) -> None:
        if self._work is None or not self._is_news:
            return
        self._is_news = False
        done, total, unit, tokens, seconds, stored = self._work
        if self._display is not None:
            self._display.show(self._row, done, total, rate=_rate(tokens, seconds), left=self._left(), stored=stored)
            return
        parts = [f"{done:,} {unit}" if total is None else f"{done:,} of {max(done, total):,} {unit}"]
        rate, left = _rate(tokens, seconds), self._left()
        parts += [f"{rate:,.0f} tokens/s"] if rate else []
        parts += [f"{stored:,} from the store"] if stored else []
        parts += [f"{clock(left)} left"] if left else []
        self._write(f"{self._stage}: {', '.join(parts)}")

    def _left(self) -> float | None:
        """Seconds that the rest takes at the pace so far; None where that is not known."""
        assert self._work is not None
        done, total, _, _, seconds, stored = self._work
        if total is None or done <= stored or not seconds:
            return None
        return max(0, total - done) * seconds / (done - stored)

    def _end_stage(self) -> None:
        if not self._stage:
            return
        self._show()
        if self._display is not None:
            self._display.end(self._row)
        self._stage, self._work = "", None

    def _write(self, sentence: str) -> None:
        if self._quiet:
            return
        line = f"[{time.monotonic() - self._started:6.1f} s] {sentence}"
        if self._display is not None:
            self._display.say(line)
            return
        self.stream.write(line + "\n")
        self.stream.flush()


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if tokens and seconds else None


def clock(seconds: float) -> str:
    """ "0:07", "12:30", "1:02:03"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


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
