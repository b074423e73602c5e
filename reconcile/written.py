"""Whether a harness wrote down all of its run: both tell a failed write in a warning or not at all, and go on.

Imports no harness.
"""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from llm.errors import InputError

LEAST_FREE_BYTES = 1 << 20
"""A disk with less room than this is called full when something on it could not be written."""

_NO_ROOM = ("No space left on device", "Disk quota exceeded", "database or disk is full")
_INPUT_AT_FAULT = re.compile(r"^[\w.]*(InputError|PrerequisiteError): ", re.MULTILINE)
"""How a traceback says the error: this project's own, and Inspect's of the same meaning."""


def check_lm_eval_logs(folder: Path, num_samples: Mapping[str, int]) -> None:
    """Holds what lm-eval wrote to `folder` to the number of samples of each task that it had in memory.

    Raises:
        InputError: a file is missing or cut; the sentence says so where the disk is full.
    """
    results = list(folder.glob("results_*.json"))
    whole = bool(results) and all(_is_json(path) for path in results)
    for task, number in num_samples.items():
        lines = sum(_num_lines(path) for path in folder.glob(f"samples_{task}_[0-9]*.jsonl"))
        whole = whole and lines == number
    if not whole:
        raise InputError(
            _full(folder) or f"lm-eval did not write all of its results to {folder}: see {folder / 'stderr.txt'}"
        )


def unfinished(what: str, reason: str, folder: Path, *, traceback: str | None = None) -> Exception:
    """The error for a harness's run that ended early: that the disk is full, or the reason it gave.

    With a `traceback` it is an internal fault that holds it, unless that ends in an error of what was given.
    """
    if any(sign in reason for sign in _NO_ROOM):
        return InputError(_full(folder, sure=True))
    if traceback is None or _INPUT_AT_FAULT.search(traceback):
        return InputError(f"{what}: {reason}")
    fault = RuntimeError(f"{what}: {reason}")
    fault.add_note(traceback)
    return fault


def _full(folder: Path, *, sure: bool = False) -> str | None:
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not sure and shutil.disk_usage(place).free >= LEAST_FREE_BYTES:
        return None
    return (
        f"the disk is full at {folder}: free some space and give the same command again, it goes on from what is stored"
    )


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return True


def _num_lines(path: Path) -> int:
    with path.open("rb") as lines:
        return sum(line.endswith(b"\n") for line in lines)
