"""The agreement of two runs of one protocol, request by request."""

from reconcile.proof import Proof
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
