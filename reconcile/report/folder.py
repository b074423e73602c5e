"""`python -m reconcile report RUN`: any form of a report made again from the run's folder alone.

Neither torch nor a harness is imported: the folder's records hold all that both of them did.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from llm.errors import InputError
from reconcile.library import account
from reconcile.report.forms import missing_package, write_forms
from reconcile.report.records import RECORDS_NAME, Recorded, read_records
from reconcile.report.writing import report_parts
from reconcile.run_folder import DOCUMENT_NAME, check_finished


def run_report(folder: Path, formats: Sequence[str], *, out: Path | None = None) -> int:
    """Writes the forms into the folder (or into `out`), prints where they are, returns the exit code: 0. The folder
    may be one that `agreement` left.

    Raises:
        InputError: the folder is not that of a finished run, or a package that a form needs is not installed.
    """
    check_finished(folder)
    if _is_agreement(folder):
        from reconcile.report.ranking_folder import report_agreement

        return report_agreement(folder, formats, out=out)
    for name in formats:
        package = missing_package(name)
        if package is not None:
            raise InputError(f"--format {name} needs {package}: pip install 'harness-bridge[report]'")
    recorded = recorded_run(folder)
    place = folder if out is None else out
    place.mkdir(parents=True, exist_ok=True)
    ledger = account(recorded.lm_eval, recorded.inspect, recorded.inspect_loglikelihood, recorded.cross)
    for path in write_forms(place, report_parts(ledger, recorded.facts), formats).values():
        print(path)
    return 0


def _is_agreement(folder: Path) -> bool:
    if (folder / RECORDS_NAME).is_file():
        return False
    try:
        document = json.loads((folder / DOCUMENT_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and {"runs", "matrix"} <= document.keys()


def recorded_run(folder: Path) -> Recorded:
    """The records in a run's folder.

    Raises:
        InputError: there are none.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: name the folder of a finished run")
    if not (folder / RECORDS_NAME).is_file():
        raise InputError(f"{folder} holds no {RECORDS_NAME}: name the folder of a finished run of this version")
    return read_records(folder / RECORDS_NAME)
