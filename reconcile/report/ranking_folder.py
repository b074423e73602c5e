"""An agreement folder's report made again: from its reconcile.json alone, else from that and the runs it lists."""

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from llm.errors import InputError
from reconcile.coefficients import Coefficient
from reconcile.ranking import Flip, ModelCredits, Ranking, subtask_gaps
from reconcile.report.forms import FORMATS, missing_package
from reconcile.report.ranking_page import RANKING_FORMATS, write_ranking_forms
from reconcile.run_folder import DOCUMENT_NAME, check_finished
from reconcile.significance import Interval


def report_agreement(folder: Path, formats: Sequence[str], *, out: Path | None = None) -> int:
    """Writes the forms into the folder (or into `out`), prints where they are, returns the exit code: 0.

    Raises:
        InputError: a form that an agreement does not have, a folder that is not finished or whose document cannot be
            read, or a run that it needs and that is gone.
    """
    asked = RANKING_FORMATS if tuple(formats) == FORMATS else tuple(formats)
    unknown = [name for name in asked if name not in RANKING_FORMATS]
    if unknown:
        raise InputError(f"an agreement has no {', '.join(unknown)}; there are {', '.join(RANKING_FORMATS)}")
    lacking = missing_package("html")
    if "html" in asked and lacking is not None:
        raise InputError(f"--format html needs {lacking}: pip install 'harness-bridge[report]'")
    check_finished(folder)
    document = json.loads((folder / DOCUMENT_NAME).read_text(encoding="utf-8"))
    try:
        runs, ranking = document["runs"], ranking_of(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{folder / DOCUMENT_NAME} is not as `agreement` leaves it: {error!r}") from error
    place = folder if out is None else out
    place.mkdir(parents=True, exist_ok=True)
    for path in write_ranking_forms(place, ranking, runs, asked):
        print(path)
    return 0


def ranking_of(document: Mapping[str, Any]) -> Ranking:
    """The ranking that an agreement's document holds; what earlier versions left out is read from the runs."""
    gaps = document.get("subtask_gaps")
    interval = document["tau_interval"]
    return Ranking(
        num_items=document["num_items"],
        scores={name: (Fraction(ours), Fraction(theirs)) for name, (ours, theirs) in document["scores"].items()},
        subtask_gaps=_gaps_of_runs(document) if gaps is None else _exact(gaps),
        correlations={name: Coefficient(**found) for name, found in document["correlations"].items()},
        rows=tuple((model, harness) for model, harness in document["rows"]),
        matrix=tuple(tuple(Coefficient(**found) for found in line) for line in document["matrix"]),
        tau=Coefficient(**document["tau"]),
        tau_interval=None if interval is None else Interval(**interval),
        flips=tuple(_flip(flip) for flip in document["flips"]),
        ties=tuple((first, second) for first, second in document["ties"]),
    )


def _exact(gaps: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, Fraction]]:
    return {name: {subject: Fraction(gap) for subject, gap in found.items()} for name, found in gaps.items()}


def _flip(flip: Mapping[str, Any]) -> Flip:
    exact = {name: Fraction(flip[name]) for name in ("gap_lm_eval", "gap_inspect")}
    return Flip(first=flip["first"], second=flip["second"], share_of_resamples=flip["share_of_resamples"], **exact)


def _gaps_of_runs(document: Mapping[str, Any]) -> dict[str, dict[str, Fraction]]:
    from reconcile.agreement_run import read_run

    pairs = zip(document["scores"], document["runs"], strict=True)
    return subtask_gaps([ModelCredits.of(name, read_run(Path(run))) for name, run in pairs])
