"""Reads what the harnesses logged. Everything the ledger says comes from these files, whoever ran the harness."""

from pathlib import Path

from reconcile import inspect_reader, lm_eval_reader
from reconcile.log_files import readable
from reconcile.runs import HarnessRun, Protocol

__all__ = ["read_inspect_run", "read_lm_eval_run"]


def read_lm_eval_run(
    path: Path, *, task: str | None = None, metric: str | None = None, protocol: Protocol | None = None
) -> HarnessRun:
    """What lm-eval logged at `path`; see `reconcile.lm_eval_reader`.

    Raises:
        InputError: missing, damaged, hostile, empty or ambiguous logs, each in one sentence.
    """
    with readable(path, "a log of lm-eval"):
        return lm_eval_reader.read_lm_eval_run(path, task=task, metric=metric, protocol=protocol)


def read_inspect_run(path: Path, *, scorer: str | None = None, protocol: Protocol | None = None) -> HarnessRun:
    """What Inspect logged at `path`; see `reconcile.inspect_reader`.

    Raises:
        InputError: missing, damaged, hostile or empty logs, each in one sentence.
    """
    with readable(path, "a log of Inspect"):
        return inspect_reader.read_inspect_run(path, scorer=scorer, protocol=protocol)
