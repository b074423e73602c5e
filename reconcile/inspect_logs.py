"""Opens Inspect's logs through Inspect's own reader, the only thing that knows their format (`.eval`, `.json`).

inspect_ai is imported when a log is opened, not before.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm.errors import InputError
from reconcile.log_files import check_archive, check_document
from reconcile.log_values import as_float

# What a ledger never reads: the transcript of a sample, which is most of a log.
_EXCLUDED = frozenset(("events", "events_data", "timelines", "store", "attachments"))
_AT_ONCE = 256
_VALUES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}


@dataclass(frozen=True, kw_only=True)
class InspectLog:
    """A log's header, and which of its scores is the headline: scorer, metric, epoch reducer."""

    path: Path
    header: Any
    scorer: str
    metric: str | None
    reducer: str | None
    notes: tuple[str, ...] = ()

    @property
    def reported(self) -> dict[str, float]:
        """Every metric of the chosen scorer as Inspect wrote it (the first reducer's, where there are several)."""
        results = self.header.results
        if results is None:
            return {}
        for score in results.scores:
            if score.name == self.scorer and score.reducer == self.reducer:
                return {name: float(metric.value) for name, metric in score.metrics.items() if _is_number(metric.value)}
        return {}

    def reduced(self) -> Mapping[str, float] | None:
        """Each sample's value after the epochs were reduced, by sample id, in the order they were averaged.

        None where the log keeps no reductions; NaN marks a sample that was not scored.
        """
        for reduction in self.header.reductions or ():
            if reduction.scorer == self.scorer and reduction.reducer == self.reducer:
                return {str(score.sample_id): score_value(score.value) for score in reduction.samples}
        return None


def open_log(path: Path, *, scorer: str | None = None) -> InspectLog:
    """The header of the log at `path` (a file, or a folder that holds one log).

    Raises:
        InputError: no log, a damaged one, or one without a sample that was scored; one sentence.
    """
    file = _one_file(path)
    if file.suffix == ".json":
        check_document(file)
    else:
        check_archive(file)
    header = _header(file)
    notes = _state_notes(header)
    names = _scorers(header)
    if scorer is not None and scorer not in names:
        raise InputError(f"{file} has no scorer {scorer!r}: it has {', '.join(names) or 'none'}")
    chosen, metric, reducer = _headline(header, scorer, names)
    return InspectLog(path=file, header=header, scorer=chosen, metric=metric, reducer=reducer, notes=tuple(notes))


def read_samples(log: InspectLog) -> Iterator[Any]:
    """The samples without their transcripts, a few at a time.

    Raises:
        InputError: the log holds none, or is damaged.
    """
    found = 0
    try:
        for sample in _stored_samples(log.path):
            found += 1
            yield sample
    except GeneratorExit:
        raise
    except Exception as error:
        raise InputError(f"{log.path} is damaged: Inspect cannot read its samples ({_short(error)})") from error
    if not found:
        raise InputError(f"{log.path} holds no samples: run Inspect without --no-log-samples")


def _stored_samples(path: Path) -> Iterator[Any]:
    """A .json log is one document and is read once; an .eval log by what it says it holds, not by its header's list
    of ids, which a rewritten log need not match.
    """
    from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries, read_eval_log_samples_by_id

    if path.suffix == ".json":
        yield from read_eval_log(str(path), resolve_attachments="core").samples or ()
        return
    names = [(summary.id, summary.epoch) for summary in read_eval_log_sample_summaries(str(path))]
    for start in range(0, len(names), _AT_ONCE):
        yield from read_eval_log_samples_by_id(
            str(path), names[start : start + _AT_ONCE], resolve_attachments="core", exclude_fields=set(_EXCLUDED)
        )


def score_value(value: Any) -> float:
    """A score's value as Inspect's own metrics turn it into a number; NaN for an unscored sample."""
    if isinstance(value, str) and value in _VALUES:
        return _VALUES[value]
    number = as_float(value)
    if number is None and isinstance(value, str) and value.lower() in ("yes", "true", "no", "false"):
        return float(value.lower() in ("yes", "true"))
    return math.nan if number is None else number


def _one_file(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise InputError(f"{path} does not exist: give a log that Inspect wrote (.eval or .json)")
    found = sorted(file for file in path.rglob("*") if file.suffix in (".eval", ".json") and file.name != "logs.json")
    if len(found) != 1:
        what = "no Inspect log" if not found else f"{len(found)} Inspect logs"
        raise InputError(f"{path} holds {what}: name one file")
    return found[0]


def _header(file: Path) -> Any:
    try:
        from inspect_ai.log import read_eval_log
    except ImportError as error:
        raise ImportError("reading Inspect's logs needs inspect_ai: pip install 'harness-bridge[inspect]'") from error
    try:
        return read_eval_log(str(file), header_only=True)
    except Exception as error:  # the reader raises zip, JSON and validation errors of several libraries
        raise InputError(f"{file} is not a log that Inspect can read, or was cut short ({_short(error)})") from error


def _short(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:120]}" if text else type(error).__name__


def _state_notes(header: Any) -> list[str]:
    notes = []
    if header.status != "success":
        notes.append(f"partial: the Inspect run ended as {header.status}; the samples it logged were used")
    results = header.results
    if results is not None and results.completed_samples < results.total_samples:
        notes.append(f"partial: Inspect completed {results.completed_samples} of {results.total_samples} samples")
    if header.eval.dataset.shuffled:
        notes.append("Inspect shuffled its samples; items were matched by content")
    return notes


def _scorers(header: Any) -> list[str]:
    if header.results is not None and header.results.scores:
        return list(dict.fromkeys(score.name for score in header.results.scores))
    return [scorer.name for scorer in header.eval.scorers or ()]


def _headline(header: Any, scorer: str | None, names: Sequence[str]) -> tuple[str, str | None, str | None]:
    """(scorer, metric, reducer): what the log calls its headline, else the first of each."""
    results = header.results
    if results is None or not results.scores:
        return scorer or (names[0] if names else ""), None, None
    head = getattr(results, "headline", None)
    if head is not None and head.score is not None and scorer in (None, head.score):
        return head.score, head.metric, head.reducer
    first = next(score for score in results.scores if scorer in (None, score.name))
    return first.name, next(iter(first.metrics), None), first.reducer


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
