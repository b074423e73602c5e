"""Runs both harnesses on one loaded model. The only module of the ledger that runs a harness.

Each harness runs through its own public entry (lm-eval's `simple_evaluate`, Inspect's `eval`) and writes its own logs;
nothing is read back here. Beside lm-eval's logs goes `requests.jsonl`, the token-level trace of what was scored.
"""

import inspect
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llm.scoring.requests import Scorer, ScoreRequest, TokenScores
from reconcile.cache import store_path
from reconcile.engines import MAX_RETRIES, faults_of, open_inspect, open_lm_eval, without_secrets
from reconcile.lm_eval_logs import TRACE_NAME
from reconcile.options import PageText, RunOptions
from reconcile.progress import Progress, stderr_to
from reconcile.recipe_files import RAW_PAGES
from reconcile.runs import HarnessRun, Protocol, SampleRecord
from reconcile.trace import trace_file
from reconcile.written import check_lm_eval_logs, unfinished

OnScored = Callable[[Sequence[int], Sequence[TokenScores]], object]
Journal = Callable[[str, int], object]

_SHUFFLE_SEED = 20240229
_MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """The model, and the scorer of each door: one engine behind one store, or two engines that share nothing."""

    model: Any
    tokenizer: Any
    lm_eval: "CountingScorer"
    inspect: "CountingScorer"

    @property
    def fingerprint(self) -> str:
        """Identity of weights and configuration."""
        return str(self.model.fingerprint)

    @property
    def dtype(self) -> str:
        """The weights' dtype by name."""
        return str(self.model.dtype).removeprefix("torch.")


class CountingScorer:
    """Passes requests on to a scorer and shows how many are done, of `total` where that is known."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.scorer: Scorer | None = None
        self.expect(None)

    def expect(self, total: int | None) -> None:
        """A new stage begins, which will ask for this many requests."""
        self.total, self.done, self.stored, self.tokens, self.seconds = total, 0, 0, 0, 0.0
        self._computing = False

    def score(
        self, requests: Sequence[ScoreRequest], *, top_k: int = 0, on_scored: OnScored | None = None
    ) -> list[TokenScores]:
        """Scores in request order; `on_scored(indices, scores)` is told of them as early as the scorer can."""
        assert self.scorer is not None
        before, began, self._computing = (self.done, self.seconds), time.monotonic(), False

        def told(indices: Sequence[int], scores: Sequence[TokenScores]) -> None:
            self.seconds = before[1] + time.monotonic() - began
            self.stored += 0 if self._computing else len(indices)
            self.count(len(indices))
            if on_scored is not None:
                on_scored(indices, scores)

        reports = "on_scored" in inspect.signature(self.scorer.score).parameters
        further: dict[str, Any] = {"on_scored": told} if reports else {}
        scores = self.scorer.score(requests, top_k=top_k, **further)
        if not reports:
            self.computed(requests)
            told(range(len(requests)), scores)
        unheard = before[0] + len(requests) - self.done
        if unheard:
            self.count(unheard)
        return scores

    def computed(self, requests: Sequence[ScoreRequest]) -> None:
        """These were computed, and are counted in `count` when they are passed on."""
        self._computing = True
        self.tokens += sum(len(one.context_ids) + len(one.continuation_ids) for one in requests)

    def count(self, number: int) -> None:
        """So many more are done."""
        self.done += number
        self.progress.advance(
            self.done, self.total, "requests", tokens=self.tokens, seconds=self.seconds, stored=self.stored
        )


class WatchedEngine:
    """An engine that tells a counter of requests as they are computed."""

    def __init__(self, engine: Any, counter: CountingScorer) -> None:
        self.engine = engine
        self.counter = counter

    def score(
        self, requests: Sequence[ScoreRequest], *, top_k: int = 0, on_scored: OnScored | None = None
    ) -> list[TokenScores]:
        """Scores in request order; `on_scored` is passed on."""

        def done(indices: Sequence[int], scores: Sequence[TokenScores]) -> None:
            self.counter.computed([requests[index] for index in indices])
            if on_scored is not None:
                on_scored(indices, scores)

        scored: list[TokenScores] = self.engine.score(requests, top_k=top_k, on_scored=done)
        return scored


def prepare_environment(options: RunOptions) -> None:
    """Settings that harness libraries read when they are imported: no bars of their own, no network unless asked."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if options.data != "hub" and not options.engines and not _is_remote(options.model):
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
            os.environ.setdefault(name, "1")


def _is_remote(ref: str) -> bool:
    from llm.models import resolve_ref

    return resolve_ref(ref).kind in ("hub", "hf")


def load(options: RunOptions, progress: Progress, journal: Journal | None = None) -> LoadedModel:
    """Loads the model once and puts a scorer before each door; `journal` hears what the store gives and takes.

    Raises:
        InputError: the model cannot be used.
    """
    from llm.models import load_model

    model, tokenizer = load_model(options.model, dtype=options.dtype, device=options.device)
    first = _scorer(model, options, progress, journal)
    second = first if options.cache else _scorer(model, options, progress, journal)
    return LoadedModel(model=model, tokenizer=tokenizer, lm_eval=first, inspect=second)


def _scorer(model: Any, options: RunOptions, progress: Progress, journal: Journal | None) -> CountingScorer:
    """An engine, behind the user's store unless that is off: a killed run resumes, no harness repeats the other."""
    from llm.scoring.plain import make_scorer
    from llm.scoring.store import ScoreStore, StoredScorer

    counter = CountingScorer(progress)
    engine = make_scorer(model, logits_dtype=options.logits_dtype)
    counter.scorer = WatchedEngine(engine, counter) if hasattr(engine, "version") else engine
    if options.cache and hasattr(engine, "version"):
        namespace = f"{model.fingerprint}|{model.dtype}|{options.logits_dtype}|{engine.version}"
        counter.scorer = StoredScorer(counter.scorer, ScoreStore(store_path()), namespace, journal=journal)
    return counter


def expected_requests(options: RunOptions, protocol: Protocol, *, unconditional: bool) -> int | None:
    """How many choices one side will score, twice as many if `unconditional`; None where that shows only in the tokens
    or while generating.
    """
    if options.task == "wikitext" or protocol.readout == "generate":
        return None
    from llm.evaluation.data import load_items

    items = load_items(options.task, options.source, subjects=options.subjects, limit=options.limit)
    return sum(len(item.choices) for item in items) * (2 if unconditional else 1)


def run_lm_eval(
    loaded: LoadedModel | None, options: RunOptions, folder: Path, *, page_text: PageText = "detokenised"
) -> None:
    """lm-eval's evaluator over its task definitions; its results, samples and the trace go to `folder`.

    `page_text` is what pages are scored as; lm-eval's own task detokenises them.

    Raises:
        InputError: the task cannot be run so, or nothing was written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if loaded is not None:
        asks_bare = options.lm_eval.normalisation == "pmi"
        loaded.lm_eval.expect(expected_requests(options, options.lm_eval, unconditional=asks_bare))
    with stderr_to(folder / "stderr.txt"), _quiet_logger("lm_eval"):
        from llm.evaluation.harness.adapter import build_task_dict

        protocol = options.lm_eval
        tasks = build_task_dict(
            options.task,
            options.source,
            subjects=options.subjects,
            num_fewshot=None if options.task == "wikitext" else protocol.num_fewshot,
            normalisation=protocol.normalisation,
            tie_break=protocol.tie_break,
            seed=protocol.seed,
            render=_renderer(protocol),
            folder=folder / "tasks",
        )
        if options.task == "wikitext" and page_text == "raw":
            for task in tasks.tasks:
                task.set_config("doc_to_target", RAW_PAGES["doc_to_target"])
                task.set_config("metadata", RAW_PAGES["metadata"], update=True)
        with trace_file(folder / TRACE_NAME) as trace:
            if options.lm_eval_model is None:
                _evaluate(_decoder_lm(loaded, options, trace), tasks, options, folder)
            else:
                lm = open_lm_eval(options.lm_eval_model, options.lm_eval_model_args, trace)
                with faults_of(f"lm-eval's run of {options.lm_eval_model}"):
                    _evaluate(lm, tasks, options, folder)


def _decoder_lm(loaded: LoadedModel | None, options: RunOptions, trace: Any) -> Any:
    from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM

    assert loaded is not None
    return LlamaLmEvalLM(
        loaded.model,
        loaded.tokenizer,
        scorer=loaded.lm_eval,
        logits_dtype=options.logits_dtype,
        trace=trace,
        name=options.model,
    )


def _evaluate(lm: Any, tasks: Any, options: RunOptions, folder: Path) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.loggers import EvaluationTracker

    tracker = EvaluationTracker(output_path=str(folder / "results.json"))
    results = simple_evaluate(
        model=lm,
        model_args=without_secrets(options.lm_eval_model_args)
        if options.lm_eval_model is not None
        else {"pretrained": options.model},
        tasks=tasks.tasks,
        task_manager=tasks.task_manager,
        limit=options.limit,
        log_samples=True,
        evaluation_tracker=tracker,
        apply_chat_template=options.lm_eval.chat_template,
        batch_size=1,
    )
    assert results is not None
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    for name, task_samples in samples.items():
        tracker.save_results_samples(task_name=name, samples=task_samples)
    check_lm_eval_logs(folder, {name: len(task_samples) for name, task_samples in samples.items()})


def _renderer(protocol: Protocol) -> Any:
    if protocol.template != "inspect":
        return None
    from tasks.rendering import render_inspect

    return render_inspect


@contextmanager
def _quiet_logger(name: str) -> Iterator[None]:
    """Holds a harness's logger to warnings, in the file its standard error goes to."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def run_inspect(
    loaded: LoadedModel | None,
    options: RunOptions,
    folder: Path,
    *,
    protocol: Protocol | None = None,
    page_text: PageText = "raw",
) -> Path:
    """Inspect's own `eval` over this project's task; returns the log it wrote to `folder`.

    `protocol` replaces the options' for a further run of the same items; `page_text` is what pages are scored as.

    Raises:
        InputError: the task cannot be run so, or it did not succeed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if loaded is not None:
        asks_bare = needs_unconditional(options)
        loaded.inspect.expect(expected_requests(options, protocol or options.inspect, unconditional=asks_bare))
    with stderr_to(folder / "stderr.txt"), _inspect_model(loaded, options) as (model, settings):
        from inspect_ai import eval as inspect_eval

        log = inspect_eval(
            _inspect_task(options, protocol or options.inspect, page_text),
            model=model,
            log_dir=str(folder),
            log_format="eval",
            display="none",
            sample_shuffle=None if options.cache else _SHUFFLE_SEED,
            **settings,
        )[0]
    if log.status == "cancelled":  # Inspect takes an interruption for itself and returns
        raise KeyboardInterrupt
    if log.status != "success":
        raise _unfinished(log, options, folder)
    return Path(log.location)


def _unfinished(log: Any, options: RunOptions, folder: Path) -> Exception:
    """The error for an Inspect run that did not succeed, as it would have come from lm-eval's side, where nothing
    stands between; a fault of this project's code has Inspect's traceback with it.
    """
    reason = log.error.message if log.error is not None else log.status
    failed = [str(sample.id) for sample in log.samples or () if sample.error is not None]
    named = f" (sample {', '.join(failed[:_MOST_NAMED])}{', …' * (len(failed) > _MOST_NAMED)})" if failed else ""
    foreign = options.inspect_model is not None
    return unfinished(
        f"Inspect's run ended as {log.status}{named}",
        reason,
        folder,
        traceback=None if foreign or log.error is None else log.error.traceback,
    )


@contextmanager
def _inspect_model(loaded: LoadedModel | None, options: RunOptions) -> Iterator[tuple[Any, dict[str, Any]]]:
    """What to evaluate, and how: the decoder, or another engine, whose failed samples are counted and left out."""
    if options.inspect_model is not None:
        yield open_inspect(options.inspect_model), {"fail_on_error": False, "max_retries": MAX_RETRIES}
        return
    from providers.inspect_decoder import forget_loaded, register_loaded

    assert loaded is not None
    name = register_loaded(
        options.model,
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        scorer=loaded.inspect,
        logits_dtype=options.logits_dtype,
    )
    try:
        yield name, {"model_args": {"logits_dtype": options.logits_dtype}}
    finally:
        forget_loaded(options.model)


def _inspect_task(options: RunOptions, protocol: Protocol, page_text: PageText) -> Any:
    """The task as an object, so that no path and no working directory comes into it."""
    if options.task == "wikitext":
        from tasks.wikitext import wikitext

        return wikitext(data=options.source, limit_per_subject=options.limit, text=page_text)
    settings: dict[str, Any] = {
        "data": options.source,
        "limit_per_subject": options.limit,
        "num_fewshot": protocol.num_fewshot,
        "template": protocol.template,
        "normalisation": protocol.normalisation,
        "tie_break": protocol.tie_break,
        "seed": protocol.seed,
        "tie_atol": protocol.tie_atol,
        "readout": protocol.readout,
        "unconditional": needs_unconditional(options),
        "tokenizer": options.tokenizer if options.inspect_model is not None else None,
    }
    if options.task == "mmlu":
        from tasks.mmlu import mmlu

        return mmlu(subjects=list(options.subjects) if options.subjects else None, **settings)
    from tasks.arc_easy import arc_easy

    return arc_easy(**settings)


def needs_unconditional(options: RunOptions) -> bool:
    """Whether every choice is scored after the empty context too: where a protocol's rule is `pmi`, and, so that the
    report has it beside the other rules, wherever the decoder's likelihoods are read on both sides.
    """
    if options.task == "wikitext" or options.engines:
        return False
    rules = (options.lm_eval.normalisation, options.inspect.normalisation)
    return options.inspect.readout == "loglikelihood" or "pmi" in rules


def loglikelihood_protocol(protocol: Protocol) -> Protocol:
    """The likelihood readout of the same template, which tells what the wording does from what generating does."""
    return replace(protocol, readout="loglikelihood", chat_template=False)


def fill_unconditional(run: HarnessRun, loaded: LoadedModel) -> HarnessRun:
    """The run with every choice's logprob after the empty context, scored here where its harness had no use for it.

    Only off-path cells and the rules side by side read these, so they are no part of what the harness reported.
    """
    from llm.scoring.encoding import encode_pairs, fit

    missing = sorted({text for sample in run.samples for text in _without_unconditional(sample)})
    if not missing:
        return run
    pairs = encode_pairs(loaded.tokenizer, [("", text) for text in missing])
    requests = [fit(pair.request, loaded.model.max_length)[0] for pair in pairs]
    loaded.lm_eval.expect(len(requests))
    totals = dict(zip(missing, (scores.total for scores in loaded.lm_eval.score(requests)), strict=True))
    return replace(run, samples=tuple(_with_unconditional(sample, totals) for sample in run.samples))


def _without_unconditional(sample: SampleRecord) -> list[str]:
    pairs = zip(sample.continuations, sample.scores, strict=True)
    return [text for text, score in pairs if score.unconditional_logprob is None]


def _with_unconditional(sample: SampleRecord, totals: Mapping[str, float]) -> SampleRecord:
    if not sample.scores:
        return sample
    scores = tuple(
        replace(score, unconditional_logprob=totals[text]) if score.unconditional_logprob is None else score
        for text, score in zip(sample.continuations, sample.scores, strict=True)
    )
    return replace(sample, scores=scores)
