"""Task folders for lm-eval: its stock definitions, pointed at given data and cut to the subjects that are there.

A generated file `include`s the stock one and sets `dataset_path` (and the number of shots); MMLU's groups keep
their stock names and aggregation and list the subjects present. Nothing here imports lm-eval: its task folder is
found without. A folder written here also serves lm-eval's own command line, as `--include_path`.
"""

import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm.errors import InputError
from llm.evaluation.harness.optional import lm_eval_missing

TASKS = ("mmlu", "arc_easy", "wikitext")
_STOCK_FILES = {"arc_easy": "arc/arc_easy.yaml", "wikitext": "wikitext/wikitext.yaml"}
_MMLU = "mmlu/default"


@dataclass(frozen=True, kw_only=True)
class TaskFolder:
    """A written folder: `root` is the name to evaluate, `tasks` the sub-tasks that must then be loaded."""

    path: Path
    root: str
    tasks: tuple[str, ...]


def stock_tasks() -> Path:
    """The folder of lm-eval's own task definitions. Raises ImportError with the install hint when there is none."""
    try:
        spec = importlib.util.find_spec("lm_eval")
    except ImportError as error:
        raise lm_eval_missing(error) from error
    if spec is None or not spec.submodule_search_locations:
        raise lm_eval_missing()
    return Path(next(iter(spec.submodule_search_locations))) / "tasks"


def mmlu_categories() -> dict[str, str]:
    """Subject -> stock group (`mmlu_stem`, …), all 57, as lm-eval's own files tag them."""
    pattern = re.compile(r'^"?tag"?: *"?(mmlu_\w+?)_tasks"?', re.MULTILINE)
    categories = {}
    for file in sorted((stock_tasks() / _MMLU).glob("mmlu_*.yaml")):
        found = pattern.search(file.read_text(encoding="utf-8"))
        if found:
            categories[file.stem.removeprefix("mmlu_")] = found.group(1)
    return categories


def split_task(task: str, subjects: Sequence[str] | None) -> tuple[str, Sequence[str] | None, str | None]:
    """(benchmark, subjects, the sub-task that is the whole benchmark): `mmlu_anatomy` is MMLU with one subject."""
    if task.startswith("mmlu_"):
        subject = task.removeprefix("mmlu_")
        if subjects and list(subjects) != [subject]:
            raise InputError(f"task {task!r} is one subject: leave out subjects, or give task 'mmlu'")
        return "mmlu", (subject,), task
    if subjects and task != "mmlu":
        raise InputError(f"task {task!r} has no subjects: leave out {', '.join(subjects)}")
    return task, subjects, None


def write_task_folder(
    folder: Path,
    task: str,
    dataset_path: str,
    *,
    subjects: Sequence[str] = (),
    num_fewshot: int | None = None,
    metrics: Sequence[str] = (),
) -> TaskFolder:
    """Write the definitions of `task` over the data at `dataset_path` (a folder or a Hub id) into `folder`.

    `subjects` are MMLU's, at least one. `metrics`, where given, replace the task's own list; each is averaged.
    Raises InputError for an unknown task or subject, ImportError without lm-eval.
    """
    folder.mkdir(parents=True, exist_ok=True)
    extra: dict[str, object] = {"dataset_path": dataset_path}
    if num_fewshot is not None:
        extra["num_fewshot"] = num_fewshot
    if metrics:
        extra["metric_list"] = [
            {"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in metrics
        ]
    if task == "mmlu":
        return _write_mmlu(folder, subjects, extra)
    if task not in _STOCK_FILES:
        raise InputError(f"no task named {task!r}: give one of {', '.join(TASKS)}")
    _write(folder / f"{task}.yaml", stock_tasks() / _STOCK_FILES[task], extra)
    return TaskFolder(path=folder, root=task, tasks=(task,))


def _write_mmlu(folder: Path, subjects: Sequence[str], extra: Mapping[str, object]) -> TaskFolder:
    categories = mmlu_categories()
    unknown = sorted(set(subjects) - set(categories))
    if unknown or not subjects:
        what = f"no MMLU subject named {unknown[0]!r}" if unknown else "no MMLU subject given"
        raise InputError(f"{what}: lm-eval defines {len(categories)}, from {min(categories)} to {max(categories)}")
    stock = stock_tasks() / _MMLU
    members: dict[str, list[str]] = {}
    for subject in sorted(set(subjects)):
        name = f"mmlu_{subject}"
        _write(folder / f"{name}.yaml", stock / f"{name}.yaml", extra)
        members.setdefault(categories[subject], []).append(name)
    for group, names in members.items():
        _write(folder / f"_{group}.yaml", stock / f"_{group}.yaml", {"task": names})
    _write(folder / "_mmlu.yaml", stock / "_mmlu.yaml", {"task": _in_stock_order(members)})
    return TaskFolder(path=folder, root="mmlu", tasks=tuple(name for names in members.values() for name in names))


def _in_stock_order(members: Mapping[str, Sequence[str]]) -> list[str]:
    """The groups that have members, in the order in which lm-eval lists them."""
    text = (stock_tasks() / _MMLU / "_mmlu.yaml").read_text(encoding="utf-8")
    listed = re.findall(r"^ *- *(mmlu_\w+)", text, re.MULTILINE)
    return [group for group in listed if group in members] + sorted(set(members) - set(listed))


def _write(path: Path, stock: Path, values: Mapping[str, object]) -> None:
    """One definition; values are written as JSON, which YAML reads as it stands."""
    if not stock.is_file():
        raise InputError(f"lm-eval has no {stock}: this project reads the task layout of lm_eval 0.4.13")
    lines = [f"{name}: {json.dumps(value)}" for name, value in {"include": str(stock), **values}.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
