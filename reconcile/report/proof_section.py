"""The agreement of two runs of one protocol, request by request: this run's own, or that of runs made to prove it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from reconcile.proof import Proof, SideProof
from reconcile.report.numbers import count, listed
from reconcile.report.sections import Section, Table


def proof_section(proof: Proof) -> Section:
    """n/n three times, or what differs and by how much."""
    rows = (
        ("requests token-identical", f"{proof.token_identical}/{proof.num_requests}"),
        ("requests logprob-identical", f"{proof.logprob_identical}/{proof.num_requests}"),
        ("items prediction-identical", f"{proof.prediction_identical}/{proof.num_items}"),
        ("largest logprob difference", f"{proof.max_difference:g} nats"),
    )
    sentences = ["Both sides claim the same template, so each request can be held against its twin."]
    if proof.num_with_ids < proof.num_requests:
        sentences.append(
            f"{proof.num_requests - proof.num_with_ids} requests do not say on both sides which ids they had."
        )
    if proof.shared_store:
        sentences.append(
            "The harnesses shared a score store here, so equal numbers are no evidence of their own: --no-cache is."
        )
    table = Table(headers=("agreement", ""), align="lr", rows=rows)
    return Section(title="Agreement", sentences=tuple(sentences), table=table, brief=True)


def side_proof_sections(proofs: Sequence[SideProof], names: Mapping[str, str]) -> list[Section]:
    """The proofs, each under the name of the side whose protocol it was."""
    return [_side_proof_section(one, names[one.side]) for one in proofs]


def _side_proof_section(one: SideProof, name: str) -> Section:
    title = f"Proof: both by the protocol of {name}"
    outcome = f"{'The proof holds' if one.holds else 'The proof FAILED'}: its run is in {one.folder}."
    if one.proof is None:
        return Section(title=title, sentences=(outcome, "No request could be compared."), brief=True)
    section = proof_section(one.proof)
    return replace(section, title=title, sentences=(outcome, *section.sentences))


def proof_line(one: SideProof, names: Mapping[str, str]) -> str:
    """A proof in a line."""
    return f"Proof by {names[one.side]}'s protocol {'holds' if one.holds else 'FAILED'}: {_counts(one.proof)}."


def failed_proofs(proofs: Sequence[SideProof], names: Mapping[str, str]) -> str:
    """Which proofs failed, to stand before a verdict; nothing where none did."""
    failed = [names[one.side] + "'s" for one in proofs if not one.holds]
    return f"PROOF FAILED by {listed(failed)} protocol. " if failed else ""


def _counts(proof: Proof | None) -> str:
    if proof is None:
        return "no request could be compared"
    return (
        f"of {count(proof.num_requests, 'request')}, {proof.token_identical} token-identical and "
        f"{proof.logprob_identical} logprob-identical; of {count(proof.num_items, 'item')}, "
        f"{proof.prediction_identical} prediction-identical"
    )
