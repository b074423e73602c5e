"""The one source of benchmark items: both harnesses, every door and the ledger read them from here.

`data` says where from: "sample" (the original set shipped in the package), "hub" (the Hub's own repositories, through
the optional `datasets` package) or a folder laid out like the Hub. Items keep the data's own order of rows and
choices, its labels (letters or numbers) and its repeats. Imports neither torch nor a harness.
"""

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from llm.errors import InputError
from llm.evaluation.hub_cache import fingerprinted_link
from llm.evaluation.hub_layout import Repository, Row, open_repository, resolve_folder
from llm.evaluation.item_rows import MMLU_LABELS as MMLU_LABELS
from llm.evaluation.item_rows import Item, arc_item, mmlu_item, text_field
from llm.evaluation.mmlu_subjects import MMLU_SUBJECTS

Task = Literal["mmlu", "arc_easy", "wikitext"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Benchmark:
    """Where a benchmark stands on the Hub; `config` is None where the configs are its subjects."""

    path: str
    config: str | None
    fewshot_split: str | None


_BENCHMARKS: Mapping[str, _Benchmark] = {
    "mmlu": _Benchmark(path="cais/mmlu", config=None, fewshot_split="dev"),
    "arc_easy": _Benchmark(path="allenai/ai2_arc", config="ARC-Easy", fewshot_split="train"),
    "wikitext": _Benchmark(path="EleutherAI/wikitext_document_level", config="wikitext-2-raw-v1", fewshot_split=None),
}
TASKS: tuple[str, ...] = tuple(_BENCHMARKS)


def load_items(
    task: str,
    data: str = "sample",
    *,
    subjects: Sequence[str] | str | None = None,
    limit: int | None = None,
    split: str = "test",
) -> list[Item]:
    """The items of a benchmark, subject by subject in the order asked (all, alphabetically, by default).

    `limit` keeps the first N rows of each subject, as lm-eval's `--limit`.

    Raises:
        InputError: unknown task, subject or split, data that lacks the task, a bad row (named by file and line), or
            no item at all.
    """
    _benchmark(task)
    if task == "wikitext":
        raise InputError("task 'wikitext' has pages, not items: use load_pages")
    _check_limit(limit)
    items = [item for name in _chosen(task, data, subjects) for item in _items(task, data, name, split, limit)]
    if not items:
        raise InputError(
            f"the {split} split of {task} in {_place(task, data)} holds no items: it needs at least one row"
        )
    return items


def load_fewshot(task: str, data: str = "sample", subject: str | None = None) -> list[Item]:
    """The rows that few-shot examples come from, in file order: MMLU's dev rows of `subject`, ARC-Easy's train rows.

    Raises:
        InputError: as `load_items`; MMLU without a subject; a task without few-shot examples.
    """
    benchmark = _benchmark(task)
    if benchmark.fewshot_split is None:
        raise InputError(f"task {task!r} takes no few-shot examples")
    if task == "mmlu" and not subject:
        raise InputError("few-shot examples of 'mmlu' belong to a subject: name one")
    return load_items(task, data, subjects=[subject] if subject else None, split=benchmark.fewshot_split)


def load_pages(data: str = "sample", limit: int | None = None, *, split: str = "test") -> list[str]:
    """WikiText pages as the data has them, in order; a page's place in the list is its doc_id.

    Raises:
        InputError: data without WikiText, a bad row (named by file and line), or no page at all.
    """
    _check_limit(limit)
    benchmark = _benchmark("wikitext")
    rows = _rows("wikitext", data, str(benchmark.config), split)[:limit]
    pages = [text_field(row, "page") for row in rows]
    if not pages:
        raise InputError(f"the {split} split of wikitext in {_place('wikitext', data)} holds no pages")
    return pages


def item_key(subject: str | None, question: str, choices: Iterable[str]) -> str:
    """What an item is matched by: the SHA-256 (hex) of its content.

    Runs of white space count as one space, choices stand in the data's order, and the subject takes part where there
    is one. The answer does not: two harnesses that disagree on it still hold the same item.
    """
    content = [" ".join(text.split()) for text in (subject or "", question, *choices)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def subjects(data: str = "sample") -> tuple[str, ...]:
    """The MMLU subjects that the data has, alphabetically; the Hub has all 57.

    Raises:
        InputError: the data has no MMLU, or none of its subjects.
    """
    if data == "hub":
        return MMLU_SUBJECTS
    repository = _repository("mmlu", data)
    found = tuple(name for name in MMLU_SUBJECTS if name in repository.configs)
    if not found:
        raise InputError(f"{repository.folder / 'README.md'} lists no MMLU subject among its configs")
    return found


def task_folder(task: str, data: str = "sample") -> Path:
    """The absolute folder of a benchmark's files, for "sample" or a folder laid out like the Hub.

    Raises:
        InputError: unknown task, no such folder, or a folder without the task.
    """
    benchmark = _benchmark(task)
    root = _sample_folder() if data == "sample" else resolve_folder(data)
    folder = root / benchmark.path
    if not folder.is_dir():
        raise InputError(
            f"{root} has no data for task {task!r}: laid out like the Hub it holds {benchmark.path}/README.md "
            f"and the files that card names"
        )
    return folder


def dataset_path(task: str, data: str = "sample") -> str:
    """What `datasets.load_dataset` and a task's `dataset_path` take: the Hub id, or an absolute path of the folder.

    That path is a link named after the content, because `datasets` caches folders by name (see `hub_cache`);
    `task_folder` is the folder itself.

    Raises:
        InputError: as `task_folder`, or files that the card names but that cannot be read.
    """
    if data == "hub":
        return _benchmark(task).path
    return str(fingerprinted_link(task_folder(task, data), data_fingerprint(task, data)))


def data_fingerprint(task: str, data: str = "sample", *, subjects: Sequence[str] | str | None = None) -> str:
    """Identity of the data used: SHA-256 (hex) over every file of the task's configs, by name and content.

    A copy of a folder elsewhere has the same fingerprint. Hub data is hashed row by row.

    Raises:
        InputError: as `load_items`.
    """
    digest = hashlib.sha256()
    for config in _configs(task, data, subjects):
        for name, content in _contents(task, data, config):
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def validate(task: str, data: str = "sample", *, subjects: Sequence[str] | str | None = None) -> None:
    """Reads all that a run of the task would read, before anything slow is loaded; nothing is fetched from the Hub.

    Raises:
        InputError: the first thing found wrong.
    """
    names = _chosen(task, data, subjects)
    if data == "hub":
        return
    if task == "wikitext":
        load_pages(data)
        return
    load_items(task, data, subjects=subjects)
    for name in names:
        load_fewshot(task, data, name)


def _benchmark(task: str) -> _Benchmark:
    if task not in _BENCHMARKS:
        raise InputError(f"unknown task {task!r}: use one of {', '.join(TASKS)}")
    return _BENCHMARKS[task]


def _chosen(task: str, data: str, wanted: Sequence[str] | str | None) -> list[str]:
    """The subjects to read; [""] for a benchmark that has none."""
    if isinstance(wanted, str):
        wanted = [name.strip() for name in wanted.split(",") if name.strip()]
    if _benchmark(task).config is not None:
        if wanted:
            raise InputError(f"task {task!r} has no subjects: leave out {', '.join(wanted)}")
        return [""]
    available = subjects(data)
    for name in wanted or ():
        if name not in available:
            near = difflib.get_close_matches(name, available, n=3)
            hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(available)}"
            raise InputError(f"unknown MMLU subject {name!r} in {_place(task, data)}: {hint}")
    return list(dict.fromkeys(wanted)) if wanted else list(available)


def _configs(task: str, data: str, wanted: Sequence[str] | str | None) -> list[str]:
    config = _benchmark(task).config
    return [name if config is None else config for name in _chosen(task, data, wanted)]


def _items(task: str, data: str, subject: str, split: str, limit: int | None) -> list[Item]:
    config = _benchmark(task).config or subject
    parse = mmlu_item if task == "mmlu" else arc_item
    return [parse(row, subject, doc_id) for doc_id, row in enumerate(_rows(task, data, config, split)[:limit])]


def _check_limit(limit: int | None) -> None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InputError(f"limit {limit!r} is not a whole number of rows: give 1 or more, or leave it out")


# Where rows come from


def _sample_folder() -> Path:
    return Path(str(resources.files("llm.evaluation").joinpath("sample_data")))


def _place(task: str, data: str) -> str:
    return _benchmark(task).path if data == "hub" else str(task_folder(task, data))


def _repository(task: str, data: str) -> Repository:
    return open_repository(task_folder(task, data))


def _rows(task: str, data: str, config: str, split: str) -> list[Row]:
    if data == "hub":
        return _hub_rows(_benchmark(task).path, config, split)
    return _repository(task, data).rows(config, split)


def _hub_rows(path: str, config: str, split: str) -> list[Row]:
    try:
        import datasets
    except ImportError as error:
        raise ImportError("data 'hub' needs the datasets package: pip install 'harness-bridge[lm-eval]'") from error
    try:
        loaded = datasets.load_dataset(path, config, split=split)
    except Exception as error:  # the client raises a dozen kinds: no network, no such config, a cache gone bad
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"could not load {path} ({config}, {split}) from the Hub: {reason}") from error
    return [Row(fields=record, where=f"{path} ({config}, {split}) row {i}") for i, record in enumerate(loaded, start=1)]


def _contents(task: str, data: str, config: str) -> Iterable[tuple[str, bytes]]:
    if data == "hub":
        benchmark = _benchmark(task)
        for split in dict.fromkeys(("test", benchmark.fewshot_split or "test")):
            rows = [row.fields for row in _hub_rows(benchmark.path, config, split)]
            yield f"{config}/{split}", json.dumps(rows, sort_keys=True).encode()
        return
    repository = _repository(task, data)
    for split in repository.configs.get(config, {}):
        for path in repository.files(config, split):
            yield f"{split}:{path.relative_to(repository.folder).as_posix()}", path.read_bytes()
