"""One `python -m reconcile TASK` call from the checked options to the finished folder.

Nothing slow is imported here: the model and the harnesses come in when everything that can be checked has been.
"""

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from llm.errors import InputError
from reconcile.engines import without_secrets
from reconcile.ledger import Ledger
from reconcile.numerics import Numerics
from reconcile.options import RunOptions
from reconcile.page_ledger import PageLedger
from reconcile.points import gap_points, is_past
from reconcile.progress import Progress
from reconcile.proof import SideProof
from reconcile.proving import run_proofs
from reconcile.recipe import run_command
from reconcile.recipe_files import write_recipe_files
from reconcile.report.facts import RunFacts
from reconcile.report.names import SIDES, side_names
from reconcile.report.parts import Parts
from reconcile.report.records import RECORDS_NAME, Recorded, write_records
from reconcile.report.writing import print_report, write_report
from reconcile.run_folder import working_folder
from reconcile.run_log import RunLog
from reconcile.runs import HarnessRun

if TYPE_CHECKING:
    from reconcile.harnesses import LoadedModel

EXIT_ACCOUNTED, EXIT_UNEXPLAINED = 0, 1

_PACKAGES = ("harness-bridge", "lm_eval", "inspect_ai", "torch", "transformers", "tokenizers", "datasets", "numpy")


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """What both harnesses left, read back from their logs."""

    lm_eval: HarnessRun
    inspect: HarnessRun
    inspect_loglikelihood: HarnessRun | None
    cross: tuple[HarnessRun, ...]
    model_fingerprint: str | None
    dtype: str | None
    numerics: tuple[Numerics, ...] = ()


def run_task(options: RunOptions) -> int:
    """Runs both harnesses, writes the folder, prints the table; returns the exit code.

    Raises:
        InputError: anything that was asked for cannot be done.
    """
    with Progress(quiet=options.quiet) as progress:
        return _run_task(options, progress)


def _run_task(options: RunOptions, progress: Progress) -> int:
    check(options)
    progress.say(f"reconcile {options.task}: model {options.models}, data {options.data}")
    log = RunLog()
    loaded = _load(options, progress, log)
    with working_folder(options.folder()) as folder, _resumable(options):
        log.open(folder, _command())
        report = _run_into(folder, options, progress, loaded, log, command=_command())
        log.finish()
    progress.close()
    print_report(report, options.folder(), quiet=options.quiet)
    over = is_past(gap_points(report.ledger), options.fail_over)
    if over:
        print(f"The gap, {gap_points(report.ledger):.4g} points, is PAST the {options.fail_over:g} of --fail-over.")
    return EXIT_ACCOUNTED if report.holds and not over else EXIT_UNEXPLAINED


@contextmanager
def _resumable(options: RunOptions) -> Iterator[None]:
    """An interruption says what is kept."""
    try:
        yield
    except KeyboardInterrupt:
        kept = "what was scored is stored, and the same command goes on from there" if options.cache else ""
        raise KeyboardInterrupt(kept) from None


def _run_into(
    folder: Path, options: RunOptions, progress: Progress, loaded: "LoadedModel | None", log: RunLog, *, command: str
) -> Parts:
    """Everything a run leaves, in `folder`, its proofs first: the report tells of them."""
    finished = _run_harnesses(options, folder, progress, loaded, log)
    proofs: tuple[SideProof, ...] = ()
    if options.prove:
        proofs = run_proofs(options, folder, lambda *one: _prove_into(*one, progress=progress, log=log))
    facts = _facts(options, finished, proofs, command)
    write_recipe_files(folder, options)
    progress.say("accounting for the gap")
    runs = Recorded(
        facts=facts,
        lm_eval=finished.lm_eval,
        inspect=finished.inspect,
        inspect_loglikelihood=finished.inspect_loglikelihood,
        **dict(zip(("lm_eval_cross", "inspect_cross"), finished.cross, strict=False)),
    )
    write_records(folder / RECORDS_NAME, runs)
    return write_report(folder, _account(finished), facts)


def _prove_into(side: str, options: RunOptions, folder: Path, *, progress: Progress, log: RunLog) -> Ledger:
    name = side_names({one: one for one in SIDES})[side]
    log.say(f"proving: both sides by {name}'s protocol")
    progress.say(f"proving: both sides by {name}'s protocol, nothing shared")
    folder.mkdir(parents=True)
    command = without_secrets(run_command(options))
    report = _run_into(folder, options, progress, _load(options, progress, log), log, command=command)
    assert isinstance(report.ledger, Ledger)
    return report.ledger


def check(options: RunOptions) -> None:
    """Finds what is wrong with the model reference, the data and the folder before anything is loaded.

    Raises:
        InputError: the first thing found wrong.
        ImportError: a harness is not installed; the message says what to install.
    """
    from llm.evaluation.data import validate
    from llm.models import resolve_ref
    from reconcile.run_folder import check_place

    if options.uses_decoder:
        resolve_ref(options.model)
    validate(options.task, options.source, subjects=options.subjects)
    _check_shots(options)
    check_place(options.folder())
    for package, extra in (("lm_eval", "lm-eval"), ("inspect_ai", "inspect")):
        _require(package, extra)
    if options.engines:
        from reconcile.engines import check_engines

        check_engines(options.lm_eval_model, options.inspect_model)


def _check_shots(options: RunOptions) -> None:
    """Whether the data has as many few-shot rows as either side asks for."""
    wanted = max(options.lm_eval.num_fewshot, options.inspect.num_fewshot)
    if not wanted or options.data == "hub":
        return
    from llm.evaluation.data import load_fewshot, subjects

    for subject in options.subjects or (subjects(options.source) if options.task == "mmlu" else ("",)):
        found = len(load_fewshot(options.task, options.source, subject or None))
        if found < wanted:
            place = f"{options.task} {subject}".strip()
            raise InputError(f"{wanted} shots are asked for and the data has {found} few-shot rows for {place}")


def _require(package: str, extra: str) -> None:
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise ImportError(f"{package} is not installed: pip install 'harness-bridge[{extra}]'")


def _load(options: RunOptions, progress: Progress, log: RunLog) -> "LoadedModel | None":
    """The decoder where either side is one; before the folder is made, so that a bad model leaves nothing behind."""
    from reconcile import harnesses

    harnesses.prepare_environment(options)
    if not options.uses_decoder:
        return None
    progress.say("loading the model")
    return harnesses.load(options, progress, log.count)


def _run_harnesses(
    options: RunOptions, folder: Path, progress: Progress, loaded: "LoadedModel | None", log: RunLog
) -> FinishedRun:
    from reconcile import harnesses
    from reconcile.logs import read_inspect_run, read_lm_eval_run

    log.say("lm-eval is scoring")
    progress.plan("lm-eval", "Inspect")
    progress.begin("lm-eval is scoring", row="lm-eval")
    harnesses.run_lm_eval(loaded, options, folder / "lm_eval", page_text=options.lm_eval_text)
    log.say("Inspect is scoring")
    progress.begin("Inspect is scoring", row="Inspect")
    inspect_log = harnesses.run_inspect(loaded, options, folder / "inspect", page_text=options.inspect_text)
    likelihoods = None
    if options.inspect.readout == "generate":
        stage = "Inspect is scoring the same items by likelihood, to tell wording from readout"
        progress.begin(stage, row="Inspect, likelihood")
        protocol = harnesses.loglikelihood_protocol(options.inspect)
        likelihoods = harnesses.run_inspect(loaded, options, folder / "inspect_loglikelihood", protocol=protocol)
    log.say("reading both harnesses' logs")
    progress.say("reading both harnesses' logs")
    runs = {
        "lm_eval": read_lm_eval_run(folder / "lm_eval", metric=_logged_metric(options), protocol=options.lm_eval),
        "inspect": read_inspect_run(inspect_log, protocol=options.inspect),
    }
    if loaded is not None and harnesses.needs_unconditional(options):
        progress.begin("scoring the choices after the empty context, for the rule pmi", row="pmi")
        runs = {side: harnesses.fill_unconditional(run, loaded) for side, run in runs.items()}
    numerics = _numerics(runs, loaded, options, progress) if loaded is not None else ()
    return FinishedRun(
        **runs,
        cross=_cross_runs(runs, loaded, options, folder, progress),
        inspect_loglikelihood=None if likelihoods is None else read_inspect_run(likelihoods),
        model_fingerprint=None if loaded is None else loaded.fingerprint,
        dtype=None if loaded is None else loaded.dtype,
        numerics=numerics,
    )


def _cross_runs(
    runs: Mapping[str, HarnessRun], loaded: "LoadedModel | None", options: RunOptions, folder: Path, progress: Progress
) -> tuple[HarnessRun, ...]:
    """Pages with one side's text in the other side's windows, where the sides differ in both."""
    from reconcile import harnesses
    from reconcile.logs import read_inspect_run, read_lm_eval_run
    from reconcile.pages import needs_cross

    if not needs_cross(runs["lm_eval"], runs["inspect"]):
        return ()
    ours, theirs = options.lm_eval_text, options.inspect_text
    progress.begin(f"lm-eval is scoring the {theirs} pages, to tell the text from the windows")
    harnesses.run_lm_eval(loaded, options, folder / "lm_eval_cross", page_text=theirs)
    progress.begin(f"Inspect is scoring the {ours} pages, to tell the text from the windows")
    log = harnesses.run_inspect(loaded, options, folder / "inspect_cross", page_text=ours)
    return read_lm_eval_run(folder / "lm_eval_cross"), read_inspect_run(log)


def _numerics(
    runs: Mapping[str, HarnessRun], loaded: "LoadedModel", options: RunOptions, progress: Progress
) -> tuple[Numerics, ...]:
    if options.numerics is None:
        return ()
    from reconcile.rescoring import rescore

    return rescore(
        list(runs.items()), model=loaded.model, tokenizer=loaded.tokenizer, options=options, progress=progress
    )


def _logged_metric(options: RunOptions) -> str | None:
    """The metric that lm-eval's side logs its credit under: its own name where it is stock, else acc."""
    if options.task == "wikitext":
        return None
    from llm.evaluation.harness.protocols import STOCK_METRICS

    ours = options.lm_eval
    stock = ours.template == "lm-eval" and ours.tie_break == "first" and not ours.tie_atol
    names = STOCK_METRICS[options.task] if stock else {}
    return names.get(ours.normalisation, "acc")


def _account(finished: FinishedRun) -> Ledger | PageLedger:
    if finished.lm_eval.pages:
        from reconcile.perplexity import decompose_pages

        cross = [page for run in finished.cross for page in run.pages]
        return decompose_pages(finished.lm_eval, finished.inspect, cross=cross)
    from reconcile.decompose import decompose

    return decompose(finished.lm_eval, finished.inspect, inspect_loglikelihood=finished.inspect_loglikelihood)


def _facts(options: RunOptions, finished: FinishedRun, proofs: tuple[SideProof, ...], command: str) -> RunFacts:
    from llm.evaluation.data import data_fingerprint

    return RunFacts(
        task=options.task,
        model=options.models,
        model_fingerprint=finished.model_fingerprint,
        dtype=finished.dtype,
        logits_dtype=options.logits_dtype if options.uses_decoder else None,
        data=options.data,
        data_fingerprint=data_fingerprint(options.task, options.source, subjects=options.subjects),
        limit=options.limit,
        seed=options.seed,
        shared_store=options.cache and not options.engines,
        versions=installed_versions(),
        command=command,
        settings={"lm_eval": dict(finished.lm_eval.settings), "inspect": dict(finished.inspect.settings)},
        numerics=finished.numerics,
        folder=str(options.folder()),
        subjects=options.subjects,
        proofs=proofs,
    )


def _command() -> str:
    return without_secrets(shlex.join(["python", "-m", "reconcile", *sys.argv[1:]]))


def installed_versions() -> dict[str, str]:
    """The versions of Python and of the packages that took part."""
    versions = {"python": sys.version.split()[0]}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
