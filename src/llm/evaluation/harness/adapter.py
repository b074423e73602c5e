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
from llm.evaluation.harness.protocols import NoShots, Prompts, Protocol, Render, credit_function, doc_key
from llm.evaluation.harness.summary import Summary, summarize
from llm.evaluation.harness.task_folders import TASKS, TaskFolder, write_task_folder

__all__ = ["LmEvalAdapter", "Summary", "TaskSet", "build_task_dict", "evaluate", "run_preset", "summarize"]

NOT_STOCK = "not stock"


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
    from llm.evaluation.data import dataset_path, load_fewshot
    from llm.evaluation.data import subjects as known_subjects

    task, subjects, root = _split_task(task, subjects)
    protocol = Protocol(
        normalisation=normalisation,  # type: ignore[arg-type]
        tie_break=tie_break,  # type: ignore[arg-type]
        seed=seed,
        tie_atol=tie_atol,
        render=render,
    )
    _check(task, protocol, num_fewshot)
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
        _override(loaded, protocol, task, data, num_fewshot or 0)
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
    takes: task names or task objects. With `output_path` lm-eval's own files are written below it:
    `NAME/results_*.json` and, with `log_samples`, `NAME/samples_*.jsonl`. `options` go to lm-eval's
    `simple_evaluate` (limit, num_fewshot, apply_chat_template, bootstrap_iters, gen_kwargs, use_cache, …).

    Raises ImportError with the install hint when lm-eval is not installed.
    """
    _require_lm_eval()
    from lm_eval import simple_evaluate
    from lm_eval.loggers import EvaluationTracker

    lm = _as_lm(model, tokenizer, batch_size=batch_size, max_length=max_length, name=name)
    shown = name or str(getattr(lm, "name", None) or type(lm).__name__)
    tracker = EvaluationTracker(output_path=str(output_path)) if output_path is not None else None
    if isinstance(tasks, TaskSet):
        options = {"task_manager": tasks.task_manager, **options}
    results = simple_evaluate(
        model=lm,
        model_args={"pretrained": shown},
        tasks=tasks.tasks if isinstance(tasks, TaskSet) else [tasks] if isinstance(tasks, str) else list(tasks),
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


def _as_lm(model: Any, tokenizer: Any, *, batch_size: int | str, max_length: int | None, name: str | None) -> Any:
    from lm_eval.api.model import LM

    if isinstance(model, LM):
        return model
    if model is None or tokenizer is None:
        raise InputError("nothing to evaluate: give an lm-eval model, or a decoder together with its tokenizer")
    return LlamaLmEvalLM(model, tokenizer, batch_size, max_length, name=name)


def _is_known(task: str) -> bool:
    return task in TASKS or task.startswith("mmlu_")


def _split_task(task: str, subjects: Sequence[str] | None) -> tuple[str, Sequence[str] | None, str | None]:
    """(benchmark, subjects, the sub-task that is the whole benchmark): `mmlu_anatomy` is MMLU with one subject."""
    if task.startswith("mmlu_"):
        subject = task.removeprefix("mmlu_")
        if subjects and list(subjects) != [subject]:
            raise InputError(f"task {task!r} is one subject: leave out subjects, or give task 'mmlu'")
        return "mmlu", (subject,), task
    if subjects and task != "mmlu":
        raise InputError(f"task {task!r} has no subjects: leave out {', '.join(subjects)}")
    return task, subjects, None


def _check(task: str, protocol: Protocol, num_fewshot: int | None) -> None:
    from llm.evaluation.rules import NORMALISATIONS, TIE_BREAKS

    if protocol.normalisation not in NORMALISATIONS:
        raise InputError(f"normalisation is {protocol.normalisation!r}: give one of {', '.join(NORMALISATIONS)}")
    if protocol.tie_break not in TIE_BREAKS:
        raise InputError(f"tie_break is {protocol.tie_break!r}: give one of {', '.join(TIE_BREAKS)}")
    if task == "wikitext" and (num_fewshot or protocol != Protocol(seed=protocol.seed)):
        raise InputError("wikitext scores pages, not choices: it takes no shots, length rule, tie rule or wording")


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


def _override(loaded: Mapping[str, Any], protocol: Protocol, task: str, data: str, num_fewshot: int) -> None:
    """Put the protocol's functions into loaded tasks, and mark them and their groups as not stock."""
    for name, loaded_task in loaded["tasks"].items():
        subject = name.removeprefix("mmlu_") if task == "mmlu" else ""
        _override_one(loaded_task, protocol, task, data, subject, num_fewshot)
    for group in loaded["groups"].values():
        group.alias = f"{group.alias or group.name} ({NOT_STOCK})"


def _override_one(loaded_task: Any, protocol: Protocol, task: str, data: str, subject: str, num_fewshot: int) -> None:
    texts_of = loaded_task.doc_to_choice
    if protocol.render is not None:
        prompts = Prompts.load(protocol.render, task, data, subject, num_fewshot)
        texts_of = prompts.choice_texts
        for key, value in prompts.task_functions().items():
            loaded_task.set_config(key, value)
        loaded_task.sampler = NoShots()
    process_results = credit_function(
        protocol,
        key_of=lambda doc: doc_key(task, subject, doc),
        gold_of=loaded_task.doc_to_target,
        texts_of=texts_of,
    )
    loaded_task.set_config("process_results", process_results)
    alias = loaded_task.get_config("task_alias") or loaded_task.task_name
    loaded_task.set_config("task_alias", f"{alias} ({NOT_STOCK})")
    metadata = {**(loaded_task.get_config("metadata") or {}), "stock": False, "protocol": protocol.described()}
    loaded_task.set_config("metadata", metadata)


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
