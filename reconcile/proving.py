"""`--prove`: runs the recipe for either side's protocol, nothing shared, and holds every request against its twin."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from reconcile.ledger import Ledger
from reconcile.options import RunOptions
from reconcile.proof import SideProof, prove

FOLDER = "proof"


def proof_options(options: RunOptions) -> Mapping[str, RunOptions]:
    """What to run for each side's protocol; a generated readout has no twin on lm-eval's side, one protocol has one."""
    goals = {"lm_eval": options.lm_eval}
    if options.inspect.readout == "loglikelihood" and options.inspect != options.lm_eval:
        goals["inspect"] = options.inspect
    return {
        side: replace(
            options,
            lm_eval=goal,
            inspect=goal,
            cache=False,
            prove=False,
            numerics=None,
            out=options.folder() / proof_folder(side),
        )
        for side, goal in goals.items()
    }


def proof_folder(side: str) -> str:
    """Where in a run's folder the proof by a side's protocol stands."""
    return f"{FOLDER}/{side}_protocol"


def run_proofs(
    options: RunOptions, folder: Path, run: Callable[[str, RunOptions, Path], Ledger]
) -> tuple[SideProof, ...]:
    """Runs each below `folder`; `run` is told whose protocol it is, leaves a run's whole folder, returns its ledger."""
    proofs = []
    for side, asked in proof_options(options).items():
        place = proof_folder(side)
        ledger = run(side, asked, folder / place)
        proofs.append(SideProof(side=side, folder=place, proof=prove(ledger, shared_store=False)))
    return tuple(proofs)
