"""One Inspect log as a `HarnessRun`: the headline as written, its replay from the logged values, the items."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llm.errors import InputError
from llm.evaluation.data import item_key
from reconcile.inspect_logs import InspectLog, open_log, read_samples, score_value
from reconcile.inspect_records import page_record, sample_record
from reconcile.log_values import mean, number_occurrences
from reconcile.runs import HarnessRun, ItemKey, PageRecord, Protocol, SampleRecord

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
_SECRET = re.compile(r"key|secret|password|auth|header|token$", re.IGNORECASE)


def read_inspect_run(path: Path, *, scorer: str | None = None, protocol: Protocol | None = None) -> HarnessRun:
    """What Inspect logged at `path`. `protocol` is what the run was asked for where the caller knows.

    Raises:
        InputError: missing, damaged or empty logs, each in one sentence.
    """
    log = open_log(path, scorer=scorer)
    epochs = _by_id(read_samples(log))
    reported = log.reported
    if _PAGE_METRIC in reported:
        return _page_run(log, epochs, protocol)
    values = log.reduced() or _own_reduction(epochs, log.scorer)
    samples = [sample_record(runs, scorer=log.scorer, value=values.get(name)) for name, runs in epochs.items()]
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
        settings=_settings(log),
        log_files=(str(log.path),),
        notes=(*log.notes, *_epoch_notes(log, epochs)),
    )


def _by_id(samples: Any) -> dict[str, list[Any]]:
    """Each sample's epochs, in order of their numbers."""
    epochs: dict[str, list[Any]] = {}
    for sample in samples:
        epochs.setdefault(str(sample.id), []).append(sample)
    return {name: sorted(runs, key=lambda run: run.epoch) for name, runs in epochs.items()}


def _own_reduction(epochs: Mapping[str, Sequence[Any]], scorer: str) -> dict[str, float]:
    """Means over the epochs, for a log that keeps no reductions."""
    values = {}
    for name, runs in epochs.items():
        scores = [run.scores[scorer] for run in runs if scorer in (run.scores or {})]
        numbers = [number for score in scores if not math.isnan(number := score_value(score.value))]
        values[name] = mean(numbers) if numbers else math.nan
    return values


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


def _settings(log: InspectLog) -> dict[str, str]:
    spec = log.header.eval
    named = {
        "model": spec.model,
        "dataset": spec.dataset.location or spec.dataset.name,
        "data": _said(spec.metadata, "data", "source"),
        "data_fingerprint": _said(spec.metadata, "data", "fingerprint"),
        "limit": spec.config.limit,
        "epochs": spec.config.epochs,
        "epochs_reducer": ",".join(spec.config.epochs_reducer or ()) or None,
        "temperature": spec.model_generate_config.temperature,
        "max_tokens": spec.model_generate_config.max_tokens,
        "scorer": log.scorer,
    }
    arguments = {
        f"model_arg {name}": value
        for name, value in (spec.model_args or {}).items()
        if _is_short(value) and not _SECRET.search(name)
    }
    return {name: str(value) for name, value in {**named, **arguments}.items() if value is not None}


def _said(metadata: Mapping[str, Any] | None, block: str, name: str) -> Any:
    """What this project's tasks log about themselves."""
    about = (metadata or {}).get(block)
    return about.get(name) if isinstance(about, Mapping) else None


def _is_short(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)


def _epoch_notes(log: InspectLog, epochs: Mapping[str, Sequence[Any]]) -> list[str]:
    most = max(len(runs) for runs in epochs.values())
    if most == 1:
        return []
    return [f"Inspect ran {most} epochs of each sample and reduced them by {log.reducer or 'mean'}"]


def _page_run(log: InspectLog, epochs: Mapping[str, Sequence[Any]], protocol: Protocol | None) -> HarnessRun:
    seen: dict[str, int] = {}
    pages: list[PageRecord] = []
    for runs in epochs.values():
        sample = runs[0]
        text = str((sample.metadata or {}).get("page") or sample.input)
        digest = item_key(None, text, ())
        occurrence = seen.get(digest, 0)
        seen[digest] = occurrence + 1
        key = ItemKey(digest=digest, occurrence=occurrence)
        pages.append(replace(page_record(sample, scorer=log.scorer), key=key))
    return HarnessRun(
        harness="inspect",
        task=log.header.eval.task,
        headline=_PAGE_METRIC,
        protocol=protocol or Protocol(template="inspect", num_fewshot=0, normalisation="none", tie_break="first"),
        pages=tuple(pages),
        reported=log.reported,
        versions={name: str(version) for name, version in (log.header.eval.packages or {}).items()},
        settings=_settings(log),
        log_files=(str(log.path),),
        notes=log.notes,
    )
