"""records.jsonl.gz: everything both harnesses did, as the ledger saw it, so that any report can be made again from it.

The harnesses' own logs need the harnesses to be read; this needs Python. One line says what the reports must know
besides (`RunFacts`), then each run has a line for itself and one for each of its items or pages. The same runs give
the same bytes.
"""

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, TextIO

from llm.errors import InputError
from reconcile.report.facts import RunFacts
from reconcile.report.texts import common_beginning
from reconcile.runs import ChoiceScore, HarnessRun, ItemKey, PageRecord, Protocol, SampleRecord, Status

RECORDS_NAME = "records.jsonl.gz"

_FORMAT = "reconcile records"
_VERSION = 1
_SCORE_FIELDS = tuple(field.name for field in fields(ChoiceScore))
_SECRET = re.compile(r"key$|secret|password|auth|header|(hf|access|api)_token|(^|\s)token$", re.IGNORECASE)
_ROLES = ("lm_eval", "inspect", "inspect_loglikelihood", "lm_eval_cross", "inspect_cross")


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The runs that a ledger was made of, as they were handed to it, and the facts around them."""

    facts: RunFacts
    lm_eval: HarnessRun
    inspect: HarnessRun
    inspect_loglikelihood: HarnessRun | None = None
    lm_eval_cross: HarnessRun | None = None
    inspect_cross: HarnessRun | None = None

    @property
    def cross(self) -> tuple[HarnessRun, ...]:
        """Runs over pages with one side's text in the other side's windows."""
        return tuple(run for run in (self.lm_eval_cross, self.inspect_cross) if run is not None)


def write_records(path: Path, recorded: Recorded) -> None:
    """Writes the file. Logs in its own folder are named from there, which stays true when the folder is moved."""
    with path.open("wb") as raw, gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
        for line in _lines(recorded, path.parent.resolve()):
            packed.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")


def read_records(path: Path) -> Recorded:
    """Reads what `write_records` wrote.

    Raises:
        InputError: no such file, or it is damaged or of another version.
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist: name the folder of a run that was made by this version")
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return _read(file, path)
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is damaged ({type(error).__name__}: {error}): run the comparison again") from error


def _lines(recorded: Recorded, folder: Path) -> Iterator[dict[str, Any]]:
    yield {"format": _FORMAT, "version": _VERSION, "facts": asdict(recorded.facts)}
    for role in _ROLES:
        run: HarnessRun | None = getattr(recorded, role)
        if run is None:
            continue
        beginnings = _beginnings(run)
        places = {subject: place for place, subject in enumerate(beginnings)}
        yield {"role": role, "run": _run_fields(run, folder), "beginnings": list(beginnings.values())}
        for sample in run.samples:
            yield {"sample": _sample_fields(sample, places[sample.subject], beginnings[sample.subject])}
        for page in run.pages:
            yield {"page": {**vars(page), "key": [page.key.digest, page.key.occurrence]}}


def _run_fields(run: HarnessRun, folder: Path) -> dict[str, Any]:
    kept = {name: value for name, value in vars(run).items() if name not in ("samples", "pages")}
    kept["settings"] = {name: value for name, value in run.settings.items() if not _SECRET.search(name)}
    kept["log_files"] = [_named_from(folder, name) for name in run.log_files]
    return {
        name: dict(value) if isinstance(value, Mapping) else asdict(value) if isinstance(value, Protocol) else value
        for name, value in kept.items()
    }


def _named_from(folder: Path, name: str) -> str:
    place = Path(name).resolve()
    return place.relative_to(folder).as_posix() if place.is_relative_to(folder) else name


def _beginnings(run: HarnessRun) -> dict[str, str]:
    """What the prompts of each sub-task begin with, which stands in the file once."""
    prompts: defaultdict[str, list[str]] = defaultdict(list)
    for sample in run.samples:
        prompts[sample.subject].append(sample.prompt)
    return {subject: common_beginning(texts) for subject, texts in prompts.items()}


def _sample_fields(sample: SampleRecord, place: int, beginning: str) -> dict[str, Any]:
    return {
        **vars(sample),
        "prompt": [place, sample.prompt.removeprefix(beginning)],
        "key": [sample.key.digest, sample.key.occurrence],
        "scores": [[getattr(score, name) for name in _SCORE_FIELDS] for score in sample.scores],
        "credit": None if sample.credit is None else str(sample.credit),
    }


def _read(file: TextIO, path: Path) -> Recorded:
    head = json.loads(file.readline())
    if head.get("format") != _FORMAT or head.get("version") != _VERSION:
        raise InputError(f"{path} is not of version {_VERSION} of this format: run the comparison again")
    runs: dict[str, dict[str, Any]] = {}
    current: dict[str, Any] = {}
    beginnings: list[str] = []
    for line in file:
        entry = json.loads(line)
        if "role" in entry:
            current = runs.setdefault(entry["role"], {"fields": entry["run"], "samples": [], "pages": []})
            beginnings = entry["beginnings"]
        elif "sample" in entry:
            current["samples"].append(_sample(entry["sample"], beginnings))
        else:
            current["pages"].append(_page(entry["page"]))
    built = {role: _run(found) for role, found in runs.items()}
    return Recorded(facts=RunFacts(**head["facts"]), **built)


def _run(found: Mapping[str, Any]) -> HarnessRun:
    values = dict(found["fields"])
    values["protocol"] = Protocol(**values["protocol"])
    for name in ("log_files", "notes"):
        values[name] = tuple(values[name])
    return HarnessRun(**values, samples=tuple(found["samples"]), pages=tuple(found["pages"]))


def _sample(values: Mapping[str, Any], beginnings: Sequence[str]) -> SampleRecord:
    place, rest = values["prompt"]
    return SampleRecord(
        **{
            **values,
            "key": ItemKey(digest=values["key"][0], occurrence=values["key"][1]),
            "prompt": beginnings[place] + rest,
            "choices": tuple(values["choices"]),
            "continuations": tuple(values["continuations"]),
            "scores": tuple(ChoiceScore(**dict(zip(_SCORE_FIELDS, row, strict=True))) for row in values["scores"]),
            "credit": None if values["credit"] is None else Fraction(values["credit"]),
            "status": Status(values["status"]),
        }
    )


def _page(values: Mapping[str, Any]) -> PageRecord:
    key = ItemKey(digest=values["key"][0], occurrence=values["key"][1])
    return PageRecord(**{**values, "key": key, "status": Status(values["status"])})
