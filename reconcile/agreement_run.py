"""`python -m reconcile agreement`: finished runs side by side, and the order each harness puts the models in."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from llm.errors import InputError
from reconcile.ledger import Ledger
from reconcile.ledger_run import EXIT_ACCOUNTED, EXIT_UNEXPLAINED, check, run_task
from reconcile.library import account
from reconcile.logs import read_inspect_run, read_lm_eval_run
from reconcile.options import RunOptions
from reconcile.page_ledger import PageLedger
from reconcile.progress import Progress
from reconcile.ranking import ModelCredits, rank_models
from reconcile.report.ranking_page import RANKING_TITLE, write_ranking_forms
from reconcile.report.ranking_sections import ranking_sections
from reconcile.report.records import RECORDS_NAME, read_records
from reconcile.report.terminal import make_console, print_sections
from reconcile.report.texts import visible
from reconcile.report.writing import unaccounted_parts
from reconcile.run_folder import DOCUMENT_NAME, check_finished, check_place, working_folder


def run_agreement(runs: Sequence[Path], *, out: Path | None, seed: int, quiet: bool = False) -> int:
    """Reads the runs' logs, writes and prints the comparison and which runs are not accounted for; returns the
    exit code, 1 where there are any.

    Raises:
        InputError: fewer than two runs, a folder that is none, or runs that share no item.
    """
    if len(runs) < 2:
        raise InputError(f"{len(runs)} runs given: name the folders of two or more finished runs")
    progress = Progress(quiet=quiet)
    folder = out if out is not None else Path("runs") / "agreement"
    check_place(folder)
    models, unaccounted = [], []
    for run, name in zip(runs, _names(runs), strict=True):
        progress.say(f"reading {run}")
        ledger = read_run(run)
        models.append(ModelCredits.of(name, ledger))
        if not ledger.accounted:
            unaccounted.append(f"{name} ({run}): {unaccounted_parts(ledger)}.")
    ranking = rank_models(models, seed=seed)
    with working_folder(folder) as partial:
        write_ranking_forms(partial, ranking, [str(run) for run in runs])
    console = make_console()
    print_sections(console, RANKING_TITLE, [] if quiet else ranking_sections(ranking))
    page = folder / "report.html"
    place = page if page.is_file() else folder / "report.md"
    console.print(Text(f"\nFull report: {place}"), soft_wrap=True)
    for line in unaccounted:
        console.print(Text(visible(f"NOT accounted for: {line}"), style="bold red"), soft_wrap=True)
    return EXIT_UNEXPLAINED if unaccounted else EXIT_ACCOUNTED


def run_models(asked: Sequence[RunOptions]) -> list[Path]:
    """Runs each, everything checked before the first; returns the folders they left, which tell whether each run is
    accounted for.
    """
    for options in asked:
        check(options)
    for options in asked:
        run_task(options)
    return [options.folder() for options in asked]


def read_run(folder: Path) -> Ledger:
    """The ledger of a finished run, from its records, else from its harnesses' own logs.

    Raises:
        InputError: the folder is no finished multiple-choice run.
    """
    check_finished(folder)
    if (folder / RECORDS_NAME).is_file():
        recorded = read_records(folder / RECORDS_NAME)
        return _choices(account(recorded.lm_eval, recorded.inspect, recorded.inspect_loglikelihood), folder)
    if not (folder / "lm_eval").is_dir() or not (folder / "inspect").is_dir():
        raise InputError(f"{folder} is not the folder of a finished run: it lacks lm_eval/ or inspect/")
    likelihoods = folder / "inspect_loglikelihood"
    ledger = account(
        read_lm_eval_run(folder / "lm_eval"),
        read_inspect_run(folder / "inspect"),
        read_inspect_run(likelihoods) if likelihoods.is_dir() else None,
    )
    return _choices(ledger, folder)


def _choices(ledger: Ledger | PageLedger, folder: Path) -> Ledger:
    if not isinstance(ledger, Ledger):
        raise InputError(f"{folder} scores pages: agreement compares multiple-choice runs")
    return ledger


def _names(runs: Sequence[Path]) -> list[str]:
    """Each run's model by the last part of its reference, with what else it takes to tell it from the others: the
    whole reference, its dtypes, the run's folder.
    """
    about = [_model(run) for run in runs]
    refs = [str(model.get("ref") or run) for model, run in zip(about, runs, strict=True)]
    names = _told_apart([Path(ref).name or ref for ref in refs], refs, "{value}")
    for part in ("dtype", "logits_dtype"):
        names = _told_apart(names, [str(model.get(part)) for model in about], "{name} {value}")
    return _told_apart(names, [str(run) for run in runs], "{value}")


def _told_apart(names: Sequence[str], values: Sequence[str], form: str) -> list[str]:
    """The names; where several are alike and their values are not, each in the longer form."""
    kinds: dict[str, set[str]] = {}
    for name, value in zip(names, values, strict=True):
        kinds.setdefault(name, set()).add(value)
    return [
        form.format(name=name, value=value) if len(kinds[name]) > 1 else name
        for name, value in zip(names, values, strict=True)
    ]


def _model(run: Path) -> dict[str, Any]:
    try:
        model = json.loads((run / DOCUMENT_NAME).read_text(encoding="utf-8"))["model"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{run} is not the folder of a finished run: it has no readable {DOCUMENT_NAME}") from error
    return model if isinstance(model, dict) else {}
