"""One Inspect log as a `HarnessRun`: the headline as written, its replay from the logged values, the items."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from llm.errors import InputError
from reconcile.inspect_logs import InspectLog, open_log, read_samples, score_value
from reconcile.inspect_records import credited, page_record, sample_record
from reconcile.inspect_settings import inspect_settings, model_facts
from reconcile.log_values import mean, number_occurrences
from reconcile.runs import HarnessRun, ItemKey, PageRecord, Protocol, SampleRecord

Record = TypeVar("Record", SampleRecord, PageRecord)

_PROTOCOL_FIELDS = (
    "template",
    "num_fewshot",
    "normalisation",
    "tie_break",
    "readout",
    "seed",
    "tie_atol",
    "chat_template",
)
_PAGE_METRIC = "perplexity_per_token"


def read_inspect_run(path: Path, *, scorer: str | None = None, protocol: Protocol | None = None) -> HarnessRun:
    """What Inspect logged at `path`. `protocol` is what the run was asked for where the caller knows.

    Raises:
        InputError: missing, damaged or empty logs, each in one sentence.
    """
    log = open_log(path, scorer=scorer)
    reported = log.reported
    if _PAGE_METRIC in reported:
        return _page_run(log, protocol)
    shown, about_model = _first_epochs(log, sample_record)
    values = log.reduced() or {name: one.own_mean for name, one in shown.items()}
    samples = [credited(one.record, values.get(name)) for name, one in shown.items()]
    scored = [value for value in values.values() if not math.isnan(value)]
    if not scored:
        raise InputError(f"{log.path} holds no scored sample: {samples[0].error or 'every score is missing'}")
    headline = log.metric if log.metric in reported else next(iter(reported), "accuracy")
    assert headline is not None
    replay = mean(scored)
    if not reported:
        reported = {headline: replay}
    return HarnessRun(
        harness="inspect",
        task=log.header.eval.task,
        headline=headline,
        protocol=protocol or _protocol(log, samples),
        samples=number_occurrences(samples),
        reported=reported,
        stderr=reported.get("stderr"),
        subjects=_subject_means(samples),
        averaging="micro",
        replayed=replay == reported[headline] or _numpy_mean(scored) == reported[headline],
        versions={name: str(version) for name, version in (log.header.eval.packages or {}).items()},
        settings=inspect_settings(log.header, scorer=log.scorer, about_model=about_model),
        log_files=(str(log.path),),
        notes=(*log.notes, *_epoch_notes(log, shown)),
    )


@dataclass(kw_only=True)
class _Shown(Generic[Record]):
    """A sample by the record of its first epoch; of the others only their scores are kept."""

    epoch: int
    record: Record
    num_epochs: int = 0
    values: list[float] = field(default_factory=list)

    @property
    def own_mean(self) -> float:
        """The mean over the epochs, for a log that keeps no reductions."""
        return mean(self.values) if self.values else math.nan


def _first_epochs(log: InspectLog, read: Callable[..., Record]) -> tuple[dict[str, _Shown[Record]], Mapping[str, Any]]:
    """Each sample by its id, in the order of the log, and what the provider said of the model with the first output
    that says it. A few samples are in memory at a time, their records stay.
    """
    shown: dict[str, _Shown[Record]] = {}
    about: Mapping[str, Any] = {}
    for sample in read_samples(log):
        name = str(sample.id)
        if not about and sample.output is not None:
            about = model_facts(sample.output.metadata or {})
        one = shown.get(name)
        if one is None:
            one = shown[name] = _Shown(epoch=sample.epoch, record=read(sample, scorer=log.scorer))
        elif sample.epoch < one.epoch:
            one.epoch, one.record = sample.epoch, read(sample, scorer=log.scorer)
        one.num_epochs += 1
        score = (sample.scores or {}).get(log.scorer)
        if score is not None and not math.isnan(number := score_value(score.value)):
            one.values.append(number)
    return shown, about


def _numpy_mean(values: Sequence[float]) -> float:
    """Inspect's `mean` metric sums pairwise, its `accuracy` in order."""
    import numpy as np

    return float(np.mean(values))


def _subject_means(samples: Sequence[SampleRecord]) -> dict[str, float]:
    """Plain means by subject; Inspect itself reports none."""
    groups: dict[str, list[float]] = {}
    for sample in samples:
        if sample.credit is not None and sample.subject:
            groups.setdefault(sample.subject, []).append(float(sample.credit))
    return {subject: mean(values) for subject, values in groups.items()}


def _protocol(log: InspectLog, samples: Sequence[SampleRecord]) -> Protocol:
    """The protocol this project's tasks log in their metadata; for another task, what its samples show."""
    logged = (log.header.eval.metadata or {}).get("protocol")
    if isinstance(logged, Mapping):
        return Protocol(**{name: logged[name] for name in _PROTOCOL_FIELDS if name in logged})
    generated = not any(sample.scores for sample in samples)
    arguments = log.header.eval.task_args or {}
    shots = arguments.get("num_fewshot", arguments.get("fewshot", 0))
    return Protocol(
        template="inspect",
        num_fewshot=shots if isinstance(shots, int) and not isinstance(shots, bool) else 0,
        normalisation="none",
        tie_break="first",
        readout="generate" if generated else "loglikelihood",
        chat_template=generated,
    )


def _epoch_notes(log: InspectLog, shown: Mapping[str, _Shown[Any]]) -> list[str]:
    most = max(one.num_epochs for one in shown.values())
    if most == 1:
        return []
    return [f"Inspect ran {most} epochs of each sample and reduced them by {log.reducer or 'mean'}"]


def _page_run(log: InspectLog, protocol: Protocol | None) -> HarnessRun:
    seen: Counter[str] = Counter()
    pages: list[PageRecord] = []
    shown, about_model = _first_epochs(log, page_record)
    for one in shown.values():
        digest = one.record.key.digest
        pages.append(replace(one.record, key=ItemKey(digest=digest, occurrence=seen[digest])))
        seen[digest] += 1
    return HarnessRun(
        harness="inspect",
        task=log.header.eval.task,
        headline=_PAGE_METRIC,
        protocol=protocol or Protocol(template="inspect", num_fewshot=0, normalisation="none", tie_break="first"),
        pages=tuple(pages),
        reported=log.reported,
        versions={name: str(version) for name, version in (log.header.eval.packages or {}).items()},
        settings=inspect_settings(log.header, scorer=log.scorer, about_model=about_model),
        log_files=(str(log.path),),
        notes=log.notes,
    )
