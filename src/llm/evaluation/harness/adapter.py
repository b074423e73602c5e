"""lm-eval's evaluator, run on a decoder: presets, local data, protocol overrides, and its results made readable.

lm-eval is optional: this module imports without it, and what needs it raises ImportError with the install hint.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llm.errors import InputError
from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM
from llm.evaluation.harness.optional import lm_eval_missing
from llm.evaluation.harness.presets import LM_EVAL_PROTOCOL, EvalPreset, ScoringProtocol
from llm.evaluation.harness.protocols import Protocol, Render, apply_protocol
from llm.evaluation.harness.summary import Summary, summarize
from llm.evaluation.harness.task_folders import TASKS, TaskFolder, split_task, write_task_folder
from llm.evaluation.hub_layout import resolve_folder

__all__ = ["LmEvalAdapter", "Summary", "TaskSet", "build_task_dict", "evaluate", "run_preset", "summarize"]


@dataclass(frozen=True, kw_only=True)
class TaskSet:
    """Loaded tasks, ready for `evaluate`: hand over `tasks` and `task_manager`.

    `root` is the name whose score is the benchmark's (a group or a task), `names` its sub-tasks, `metric` lm-eval's
    name of the score under the protocol asked for. `stock` False means that the protocol is not lm-eval's own.
    """

    task_manager: Any
    tasks: list[Any]
    root: str
    names: tuple[str, ...]
    metric: str
    stock: bool
    protocol: Protocol


def build_task_dict(
    task: str,
    data: str = "sample",
    *,
    subjects: Sequence[str] | None = None,
    num_fewshot: int | None = None,
    normalisation: str = "none",
    tie_break: str = "first",
    seed: int = 0,
    tie_atol: float = 0.0,
    render: Render | None = None,
    folder: Path | None = None,
) -> TaskSet:
    """lm-eval's tasks of a benchmark over given data, stock unless the protocol asks for more.

    `task` is mmlu, one of its subjects (mmlu_anatomy), arc_easy or wikitext; `data` "sample", "hub" or a folder laid
    out like the Hub. `render` replaces lm-eval's wording, shots included (they are the first rows of the few-shot
    split). The definitions are written to `folder` (kept, usable as `--include_path`) or to a temporary one.

    Raises InputError for what cannot be run or when fewer sub-tasks load than asked for; ImportError without lm-eval.
    """
    _require_lm_eval()
    from llm.evaluation.data import data_fingerprint, dataset_path, load_fewshot
    from llm.evaluation.data import subjects as known_subjects

    task, subjects, root = split_task(task, subjects)
    protocol = Protocol(
        normalisation=normalisation,  # type: ignore[arg-type]
        tie_break=tie_break,  # type: ignore[arg-type]
        seed=seed,
        tie_atol=tie_atol,
        render=render,
    )
    protocol.check(task, num_fewshot)
    path = dataset_path(task, data)
    chosen = tuple(subjects or known_subjects(data)) if task == "mmlu" else ()
    for subject in chosen or ("",):
        if num_fewshot and num_fewshot > (there := len(load_fewshot(task, data, subject or None))):
            raise InputError(f"num_fewshot is {num_fewshot}: {subject or task} has {there} few-shot rows in {path}")
    metric = protocol.stock_metric(task) if task != "wikitext" else "word_perplexity"
    stock = metric is not None
    metrics = () if stock else ("acc", "acc_mutual_info") if normalisation == "pmi" else ("acc",)
    with tempfile.TemporaryDirectory(prefix="lm_eval_tasks_") as temporary:
        written = write_task_folder(
            folder or Path(temporary), task, path, subjects=chosen, num_fewshot=num_fewshot, metrics=metrics
        )
        manager, loaded = _load(written, root or written.root)
    if not stock:
        apply_protocol(loaded, protocol, task, data, num_fewshot or 0)
    _note_data(loaded, data, data_fingerprint(task, data, subjects=subjects))
    return TaskSet(
        task_manager=manager,
        tasks=_roots(loaded, root or written.root),
        root=root or written.root,
        names=tuple(loaded["tasks"]),
        metric=metric or "acc",
        stock=stock,
        protocol=protocol,
    )


def evaluate(
    model: Any,
    tasks: TaskSet | str | Sequence[Any],
    tokenizer: Any = None,
    *,
    batch_size: int | str = 8,
    max_length: int | None = None,
    name: str | None = None,
    output_path: Path | str | None = None,
    log_samples: bool = True,
    **options: Any,
) -> dict[str, Any] | None:
    """Run lm-eval's own evaluator and return its results; None on any rank but the first of several.

    `model` is an lm-eval model, or a decoder given with its `tokenizer`. `tasks` are a `TaskSet`, or what lm-eval
    takes: task names or task objects; or a sequence of any of these. With `output_path` lm-eval's own files are
    written below it: `NAME/results_*.json` and, with `log_samples`, `NAME/samples_*.jsonl`. `options` go to lm-eval's
    `simple_evaluate` (limit, num_fewshot, apply_chat_template, bootstrap_iters, gen_kwargs, use_cache, …).

    Raises ImportError with the install hint when lm-eval is not installed.
    """
    _require_lm_eval()
    from lm_eval import simple_evaluate
    from lm_eval.loggers import EvaluationTracker

    lm = _as_lm(model, tokenizer, batch_size=batch_size, max_length=max_length, name=name)
    shown = name or str(getattr(lm, "name", None) or type(lm).__name__)
    tracker = EvaluationTracker(output_path=str(output_path)) if output_path is not None else None
    asked = _flat(tasks)
    if not any(isinstance(task, str | Mapping) for task in asked):
        options = {"task_manager": _empty_manager(), **options}
    results = simple_evaluate(
        model=lm,
        model_args={"pretrained": shown},
        tasks=asked,
        batch_size=getattr(lm, "batch_size", batch_size),
        device=str(getattr(lm, "device", "")),
        log_samples=log_samples,
        evaluation_tracker=tracker,
        **options,
    )
    if results is None:
        return None
    if tracker is not None:
        _save(tracker, results, Path(str(output_path)))
    return dict(results)


def run_preset(
    preset: EvalPreset,
    model: Any,
    tokenizer: Any = None,
    data: str = "sample",
    *,
    limit: int | float | None = None,
    render: Render | None = None,
    folder: Path | None = None,
    **options: Any,
) -> dict[str, Any] | None:
    """Run a preset on a decoder and its tokenizer (or on an lm-eval model) and return lm-eval's results.

    `data` ("sample", "hub" or a folder) serves mmlu, arc_easy and wikitext; any other task loads its own. `limit`
    overrides the preset's. A preset whose lm-eval protocol has the Inspect template needs its `render`. `options`
    are those of `evaluate`.
    """
    _require_lm_eval()
    if limit is not None:
        preset = replace(preset, limit=limit)
    kwargs = {**preset.to_lm_eval_kwargs(), **options}
    names = kwargs.pop("tasks")
    if not _is_known(preset.task):
        return evaluate(model, names, tokenizer, **kwargs)
    protocol = preset.lm_eval or LM_EVAL_PROTOCOL
    shots = kwargs.pop("num_fewshot", None)
    tasks = build_task_dict(
        preset.task,
        data,
        subjects=preset.subjects,
        num_fewshot=shots,
        normalisation=protocol.normalisation,
        tie_break=protocol.tie_break,
        seed=protocol.seed,
        tie_atol=protocol.tie_atol,
        render=_renderer(protocol, render),
        folder=folder,
    )
    return evaluate(model, tasks, tokenizer, **kwargs)


class LmEvalAdapter:
    """A decoder and how it is to be evaluated, kept together: `evaluate` and `run_preset` with both filled in."""

    def __init__(
        self,
        model: Any = None,
        tokenizer: Any = None,
        *,
        batch_size: int | str = 8,
        max_length: int | None = None,
        data: str = "sample",
        output_path: Path | str | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.max_length = max_length
        self.data = data
        self.output_path = output_path

    def evaluate(
        self, tasks: TaskSet | str | Sequence[Any] = (), model: Any = None, tokenizer: Any = None, **options: Any
    ) -> dict[str, Any] | None:
        """lm-eval's results on `tasks`; see the module's `evaluate`."""
        _require_lm_eval()
        return evaluate(model or self.model, tasks, tokenizer or self.tokenizer, **{**self._options(), **options})

    def run_preset(self, preset: EvalPreset, **options: Any) -> dict[str, Any] | None:
        """lm-eval's results on a preset; see the module's `run_preset`."""
        given = {"data": self.data, **self._options(), **options}
        return run_preset(preset, self.model, self.tokenizer, **given)

    @staticmethod
    def summarize(results: Mapping[str, Any] | None) -> Summary:
        """The results as a flat mapping that prints as a Markdown table."""
        return summarize(results)

    def _options(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size, "max_length": self.max_length, "output_path": self.output_path}


# Parts


def _require_lm_eval() -> None:
    try:
        import lm_eval  # noqa: F401
    except ImportError as error:
        raise lm_eval_missing(error) from error


def _note_data(loaded: Mapping[str, Any], data: str, fingerprint: str) -> None:
    """Says in every task's metadata which data it has: lm-eval's log names a folder, not what is in it."""
    source = data if data in ("sample", "hub") else str(resolve_folder(data))
    for task in loaded["tasks"].values():
        metadata = task.get_config("metadata") or {}
        task.set_config("metadata", {**metadata, "data": {"source": source, "fingerprint": fingerprint}})


def _as_lm(model: Any, tokenizer: Any, *, batch_size: int | str, max_length: int | None, name: str | None) -> Any:
    from lm_eval.api.model import LM

    if isinstance(model, LM):
        return model
    if model is None or tokenizer is None:
        raise InputError("nothing to evaluate: give an lm-eval model, or a decoder together with its tokenizer")
    return LlamaLmEvalLM(model, tokenizer, batch_size, max_length, name=name)


def _flat(tasks: TaskSet | str | Sequence[Any]) -> list[Any]:
    """The tasks as lm-eval takes them."""
    if isinstance(tasks, TaskSet):
        return list(tasks.tasks)
    if isinstance(tasks, str):
        return [tasks]
    return [task for entry in tasks for task in (entry.tasks if isinstance(entry, TaskSet) else [entry])]


def _empty_manager() -> Any:
    """A task manager that knows no names; lm-eval's default one reads all of its thousands of definitions."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_defaults=False)


def _is_known(task: str) -> bool:
    return task in TASKS or task.startswith("mmlu_")


def _renderer(protocol: ScoringProtocol, render: Render | None) -> Render | None:
    if protocol.template == "inspect" and render is None:
        raise InputError(
            "lm-eval's side cannot word the Inspect template by itself: give render=tasks.rendering.render_inspect"
        )
    return render if protocol.template == "inspect" else None


def _load(folder: TaskFolder, root: str) -> tuple[Any, Any]:
    """The task manager over a written folder and what it loads; fewer sub-tasks than written is an error."""
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_defaults=False, include_path=str(folder.path))
    loaded = manager.load([root])
    missing = sorted(set(folder.tasks) - set(loaded["tasks"]))
    if missing:
        raise InputError(
            f"lm-eval loaded {len(loaded['tasks'])} of {len(folder.tasks)} sub-tasks of {root}: {missing[0]} is missing"
        )
    return manager, loaded


def _roots(loaded: Mapping[str, Any], root: str) -> list[Any]:
    return [loaded["groups"][root] if root in loaded["groups"] else loaded["tasks"][root]]


def _save(tracker: Any, results: Mapping[str, Any], output_path: Path) -> None:
    """Have lm-eval write its own files; it only warns when it cannot, so what it wrote is checked."""
    before = set(output_path.rglob("results_*.json"))
    samples = results.get("samples")
    tracker.save_results_aggregated(
        results={key: value for key, value in results.items() if key != "samples"}, samples=samples
    )
    if not set(output_path.rglob("results_*.json")) - before:
        raise InputError(
            f"lm-eval could not write its results below {output_path}: choose a folder that can be written"
        )
    for task_name, task_samples in (samples or {}).items():
        copies = [dict(sample) for sample in task_samples]  # lm-eval rewrites what it saves
        tracker.save_results_samples(task_name=task_name, samples=copies)
