"""`python -m reconcile logs`: two finished runs, of any model on any engine, reconciled from what they logged."""

import hashlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llm.errors import InputError
from reconcile.alignment import in_order_of, with_token_counts
from reconcile.ledger_run import EXIT_ACCOUNTED, EXIT_UNEXPLAINED, installed_versions
from reconcile.library import account
from reconcile.logs import read_inspect_run, read_lm_eval_run
from reconcile.progress import Progress
from reconcile.report.facts import RunFacts
from reconcile.run_folder import check_finished, check_place, working_folder
from reconcile.runs import HarnessRun

_PROVIDER = "decoder"


def run_logs(
    *,
    lm_eval: Sequence[Path],
    inspect: Sequence[Path],
    task: str | None,
    metric: str | None,
    scorer: str | None,
    tokenizer: str | None,
    out: Path | None,
    quiet: bool = False,
) -> int:
    """Reads the two logs, writes the report's folder, prints the table; returns the exit code.

    Raises:
        InputError: missing, damaged, empty or unlike logs; one sentence.
    """
    progress = Progress(quiet=quiet)
    paths = [*lm_eval, *inspect]
    for path in paths:
        check_finished(path)
    progress.say(f"reconcile logs: {paths[0]} and {paths[1]}")
    folder = out if out is not None else Path("runs") / f"logs-{_digest(paths)}"
    check_place(folder)
    left, right = (
        *(read_lm_eval_run(path, task=task, metric=metric) for path in lm_eval),
        *(read_inspect_run(path, scorer=scorer) for path in inspect),
    )
    left, right = _with_tokens(left, right, tokenizer)
    with working_folder(folder) as partial:
        from reconcile.report.records import RECORDS_NAME, Recorded, write_records
        from reconcile.report.writing import print_report, write_report

        facts, right = _facts(left, right), in_order_of(right, left)
        write_records(partial / RECORDS_NAME, Recorded(facts=facts, lm_eval=left, inspect=right))
        report = write_report(partial, account(left, right), facts)
    print_report(report, folder, quiet=quiet)
    return EXIT_ACCOUNTED if report.ledger.accounted else EXIT_UNEXPLAINED


def _digest(paths: Sequence[Path]) -> str:
    return hashlib.sha256("\n".join(str(path.resolve()) for path in paths).encode()).hexdigest()[:10]


def _with_tokens(left: HarnessRun, right: HarnessRun, ref: str | None) -> tuple[HarnessRun, HarnessRun]:
    """Both runs with token counts where a log has none: by the tokenizer named, else by that of this project's own
    run on the other side when the log says the same special tokens.
    """
    if not any(_lacks_tokens(run) for run in (left, right)):
        return left, right
    vouched = ref is not None
    ref = ref or next((found for run in (left, right) if (found := _own_model(run))), None)
    if ref is None:
        return left, right
    from llm.models import load_tokenizer

    try:
        tokenizer = load_tokenizer(ref)
    except InputError:
        if vouched:
            raise
        return left, right
    return _counted(left, tokenizer, ref, vouched), _counted(right, tokenizer, ref, vouched)


def _counted(run: HarnessRun, tokenizer: Any, ref: str, vouched: bool) -> HarnessRun:
    if not _lacks_tokens(run) or not (vouched or _same_specials(run, tokenizer)):
        return run
    from dataclasses import replace

    most = run.settings.get("max_length", "")
    counted = with_token_counts(run, tokenizer, int(most) if most.isdigit() else 1 << 30)
    note = f"the {run.harness} log counts no tokens; they were counted with the tokenizer of {ref}"
    return replace(counted, notes=(*counted.notes, note))


def _lacks_tokens(run: HarnessRun) -> bool:
    return any(score.num_tokens is None for sample in run.samples for score in sample.scores)


def _own_model(run: HarnessRun) -> str | None:
    """The reference of a run behind this project's provider."""
    return run.settings.get("model") if run.settings.get("provider") == _PROVIDER else None


def _same_specials(run: HarnessRun, tokenizer: Any) -> bool:
    """Whether the BOS and EOS that lm-eval logged are the tokenizer's."""
    logged = [run.settings.get(name) for name in ("bos_token", "eos_token")]
    own = [(tokenizer.bos_token, tokenizer.bos_token_id), (tokenizer.eos_token, tokenizer.eos_token_id)]
    return all(
        said is not None and f"'{text}'" in said and f"'{number}'" in said
        for said, (text, number) in zip(logged, own, strict=True)
    )


def _facts(left: HarnessRun, right: HarnessRun) -> RunFacts:
    models = list(dict.fromkeys(run.settings.get("model", "not named") for run in (left, right)))
    sources = list(dict.fromkeys(_source(run) for run in (left, right)))
    fingerprints = {run.settings.get("data_fingerprint") for run in (left, right)}
    limit = left.settings.get("limit", "")
    is_sample = any(run.settings.get("data") == "sample" for run in (left, right))
    return RunFacts(
        task=left.task,
        model=" and ".join(models),
        model_fingerprint=left.settings.get("model_fingerprint"),
        dtype=left.settings.get("dtype"),
        logits_dtype=None,
        data="sample" if is_sample else " and ".join(sources),
        data_fingerprint=fingerprints.pop() if len(fingerprints) == 1 else None,
        limit=int(limit) if limit.isdigit() else None,
        seed=0,
        shared_store=False,
        versions={**installed_versions(), **_logged_versions(left, "first"), **_logged_versions(right, "second")},
        command=shlex.join(["python", "-m", "reconcile", *sys.argv[1:]]),
        name=None if is_sample else left.task,
        settings={"lm_eval": dict(left.settings), "inspect": dict(right.settings)},
    )


def _source(run: HarnessRun) -> str:
    return run.settings.get("data", run.settings.get("dataset", "not named"))


def _logged_versions(run: HarnessRun, place: str) -> dict[str, str]:
    return {f"{name} ({place} log)": version for name, version in run.versions.items()}
