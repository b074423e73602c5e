"""Reads what lm-eval's own evaluator wrote: `results_*.json`, `samples_*.jsonl`, as 0.4.0 to 0.4.13 spell them.

Seen in the wild: samples as JSON lines or one JSON list; numbers as text ("False"); arguments as lists or as
`gen_args_0.arg_0`; one copy of every sample a filter; metrics with and without ",none"; bare NaN and Infinity.
Beside a run of this project's own stands `requests.jsonl`: for each pair of texts the digest of the
token ids that were scored, their number, and what was cut.
Imports no harness.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm.errors import InputError
from reconcile.log_files import load_document, numbered_lines

TRACE_NAME = "requests.jsonl"

_DATE = re.compile(r"_(\d{4}-\d{2}-\d{2}T[\d.\-:+]+)$")


@dataclass(frozen=True, kw_only=True)
class LmEvalFiles:
    """One finished run: its results file's content, and where each task's samples stand."""

    results_path: Path
    results: Mapping[str, Any]
    samples: Mapping[str, Path]
    notes: tuple[str, ...] = ()

    def leaves(self, task: str) -> tuple[str, ...]:
        """The sub-tasks that `task` is the group of, in lm-eval's order; (task,) for a task."""
        children = self.results.get("group_subtasks", {}).get(task) or ()
        if not children:
            return (task,)
        return tuple(dict.fromkeys(leaf for child in children for leaf in self.leaves(child)))

    def roots(self) -> tuple[str, ...]:
        """What was asked for: names that no group of the run holds."""
        groups = self.results.get("group_subtasks", {})
        held = {child for children in groups.values() for child in children or ()}
        return tuple(name for name in self.results["results"] if name not in held)


@dataclass(frozen=True, kw_only=True)
class LoggedDoc:
    """One line of a samples file, spelled one way: requests as text pairs, responses as logged."""

    where: str
    doc_id: int | None
    doc: Mapping[str, Any]
    target: str
    requests: tuple[tuple[str, Any], ...]
    responses: tuple[Any, ...]
    filter: str
    values: Mapping[str, Any] = field(default_factory=dict)
    doc_hash: str | None = None


def open_run(path: Path) -> LmEvalFiles:
    """The newest finished run at `path`: a folder (searched downwards) or a results file.

    Raises:
        InputError: nothing there, a damaged results file, runs of several models, or no samples beside the results.
    """
    found = [path] if path.is_file() else sorted(path.rglob("results*.json"), key=_age)
    if not path.exists():
        raise InputError(f"{path} does not exist: give the folder that lm-eval's --output_path named")
    if not found:
        raise InputError(f"{path} holds no results*.json: give the folder that lm-eval's --output_path named")
    folders = sorted({str(file.parent) for file in found})
    if len(folders) > 1:
        raise InputError(f"{path} holds the results of several runs or models: name one of {', '.join(folders[:6])}")
    newest = found[-1]
    results = _load_results(newest)
    samples = _find_samples(newest, results)
    if not samples:
        raise InputError(f"{newest} has no samples files beside it: run lm-eval with --log_samples")
    notes = (f"{len(found) - 1} older results file(s) in the folder were left out",) if len(found) > 1 else ()
    return LmEvalFiles(results_path=newest, results=results, samples=samples, notes=notes)


def read_docs(path: Path) -> Iterator[LoggedDoc]:
    """The lines of a samples file, one at a time.

    Raises:
        InputError: a damaged line, named by file and number. A last line that was cut short ends the reading instead;
            the caller sees fewer documents than the results name.
    """
    for number, record in _records(path):
        where = f"{path.name}:{number}"
        if not isinstance(record, dict) or "doc" not in record:
            raise InputError(f"{where} is not a sample that lm-eval logged: it has no field 'doc'")
        yield _spelled_one_way(record, where)


def read_trace(folder: Path) -> dict[str, Mapping[str, Any]]:
    """The token-level trace beside a run of this project's own, keyed by `pair_digest`; {} without one."""
    path = folder / TRACE_NAME
    if not path.is_file():
        return {}
    trace: dict[str, Mapping[str, Any]] = {}
    for number, record in _records(path):
        if not isinstance(record, dict) or "pair" not in record:
            raise InputError(f"{path}:{number} is not a line of a request trace")
        trace[record["pair"]] = record
    return trace


def _age(path: Path) -> tuple[str, float]:
    date = _DATE.search(path.stem)
    return (date.group(1) if date else "", path.stat().st_mtime)


def _load_results(path: Path) -> Mapping[str, Any]:
    results = load_document(path)
    if not isinstance(results, dict) or not isinstance(results.get("results"), dict):
        raise InputError(f"{path} is not a results file of lm-eval: it has no 'results'")
    if not results["results"]:
        raise InputError(f"{path} is empty: it reports no task")
    return results


def _find_samples(results_path: Path, results: Mapping[str, Any]) -> dict[str, Path]:
    """Each task's samples file, by the exact task name: `samples_mmlu_*` would match every subject of mmlu."""
    date = _DATE.search(results_path.stem)
    known = sorted(results["results"], key=len, reverse=True)
    samples: dict[str, Path] = {}
    for path in sorted(results_path.parent.iterdir()):
        if path.suffix not in (".jsonl", ".json") or path.name.startswith("results") or path.name == TRACE_NAME:
            continue
        own = _DATE.search(path.stem)
        if date and own and own.group(1) != date.group(1):
            continue
        stem = path.stem[: own.start()] if own else path.stem
        name = _task_of(stem, known)
        if name is not None:
            samples[name] = path
    return samples


def _task_of(stem: str, known: Sequence[str]) -> str | None:
    if stem.startswith("samples_"):
        name = stem.removeprefix("samples_")
        return name if name in known else None
    return next((name for name in known if stem == name or stem.endswith(f"_{name}")), None)


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    """(line number, JSON value) of a JSON-lines file, or (place, element) of a file that is one JSON list."""
    if _begins_a_list(path):
        yield from enumerate(load_document(path), start=1)
        return
    broken: tuple[int, str] | None = None
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        if broken is not None:
            raise InputError(f"{path}:{broken[0]} is damaged: it is not JSON ({broken[1]})")
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            broken = (number, str(error))
        else:
            yield number, record


def _begins_a_list(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(1) == b"["


_OWN_FIELDS = frozenset(
    [
        "doc_id",
        "doc",
        "target",
        "arguments",
        "resps",
        "filtered_resps",
        "filter",
        "metrics",
        "doc_hash",
        "prompt_hash",
        "target_hash",
    ]
)


def _spelled_one_way(record: dict[str, Any], where: str) -> LoggedDoc:
    doc_id = record.get("doc_id")
    doc = record["doc"]
    return LoggedDoc(
        where=where,
        doc_id=doc_id if isinstance(doc_id, int) else None,
        doc=doc if isinstance(doc, dict) else {"text": doc},
        target=str(record.get("target", "")),
        requests=tuple(_request(pair, where) for pair in _numbered(record.get("arguments", ()))),
        responses=tuple(_numbered(record.get("filtered_resps", record.get("resps", ())))),
        filter=str(record.get("filter", "none")),
        values={name: value for name, value in record.items() if name not in _OWN_FIELDS},
        doc_hash=record.get("doc_hash"),
    )


def _numbered(value: Any) -> list[Any]:
    """The elements of a list, or of a mapping gen_args_0, gen_args_1, … in the order of their numbers."""
    if isinstance(value, dict):
        return [value[name] for name in sorted(value, key=lambda name: int(name.rsplit("_", 1)[-1]))]
    return list(value)


def _request(pair: Any, where: str) -> tuple[str, Any]:
    parts = _numbered(pair) if isinstance(pair, list | tuple | dict) else [pair]
    if not parts:
        raise InputError(f"{where} logs a request without arguments")
    context = parts[0] if isinstance(parts[0], str) else json.dumps(parts[0], ensure_ascii=False)
    return context, parts[1] if len(parts) > 1 else None
