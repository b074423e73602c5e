"""`--prove`: runs the recipe for either side's protocol, nothing shared, and holds every request against its twin."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from reconcile.ledger import Ledger
from reconcile.options import RunOptions
from reconcile.proof import Proof, prove
from reconcile.report.names import side_names
from reconcile.report.proof_section import proof_section
from reconcile.report.sections import Section

FOLDER = "proof"


@dataclass(frozen=True, kw_only=True)
class SideProof:
    """What a run of one protocol on both sides showed; `side` is whose protocol it was."""

    side: str
    proof: Proof | None

    @property
    def holds(self) -> bool:
        """Whether every request, score and prediction was the same."""
        return self.proof is not None and self.proof.holds


def proof_options(options: RunOptions) -> Mapping[str, RunOptions]:
    """What to run for each side's protocol; a generated readout has no twin on lm-eval's side, one protocol has one."""
    goals = {"lm_eval": options.lm_eval}
    if options.inspect.readout == "loglikelihood" and options.inspect != options.lm_eval:
        goals["inspect"] = options.inspect
    return {
        side: replace(options, lm_eval=goal, inspect=goal, cache=False, prove=False, numerics=None)
        for side, goal in goals.items()
    }


def run_proofs(options: RunOptions, folder: Path, run: Callable[[RunOptions, Path], Ledger]) -> tuple[SideProof, ...]:
    """Runs each below `folder`; `run` leaves a run's whole folder and returns its ledger."""
    proofs = []
    for side, asked in proof_options(options).items():
        ledger = run(asked, folder / FOLDER / f"{side}_protocol")
        proofs.append(SideProof(side=side, proof=prove(ledger, shared_store=False)))
    return tuple(proofs)


def proof_sections(proofs: tuple[SideProof, ...], harnesses: Mapping[str, str]) -> list[Section]:
    """The proofs, each under the name of the side whose protocol it was."""
    names = side_names(harnesses)
    sections = []
    for one in proofs:
        title = f"Proof: both by the protocol of {names[one.side]}"
        if one.proof is None:
            sections.append(Section(title=title, sentences=("No request could be compared.",), brief=True))
        else:
            sections.append(replace(proof_section(one.proof), title=title))
    return sections
