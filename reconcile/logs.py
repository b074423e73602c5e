"""Reads what the harnesses logged. Everything the ledger says comes from these files, whoever ran the harness."""

from reconcile.inspect_reader import read_inspect_run
from reconcile.lm_eval_reader import read_lm_eval_run

__all__ = ["read_inspect_run", "read_lm_eval_run"]
