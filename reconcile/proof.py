"""Whether two runs of one protocol asked the same and got the same: request by request, item by item."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reconcile.choices import build_table, has_scores, mark_natively
from reconcile.ledger import Ledger
from reconcile.origins import defines_same_text
from reconcile.runs import ChoiceScore


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Counts over the common items. A request is one choice; `num_with_ids` of them say on both sides which token ids
    were scored. `max_difference` is the largest |logprob difference| in nats. `shared_store` says whether the second
    harness may have been answered from the first one's scores, which proves less.
    """

    num_items: int
    num_requests: int
    num_with_ids: int
    token_identical: int
    logprob_identical: int
    prediction_identical: int
    max_difference: float
    shared_store: bool

    @property
    def holds(self) -> bool:
        """Whether every request and every prediction is the same, to the bit."""
        same_requests = self.token_identical == self.logprob_identical == self.num_requests
        return same_requests and self.prediction_identical == self.num_items


@dataclass(frozen=True, kw_only=True)
class SideProof:
    """What a run of one protocol on both sides showed; `side` is whose protocol it was, `folder` where in the run's
    own folder it stands. `proof` is None where no request could be compared.
    """

    side: str
    folder: str
    proof: Proof | None

    @classmethod
    def read(cls, values: "Mapping[str, Any] | SideProof") -> "SideProof":
        """From its fields, as a file has them."""
        if isinstance(values, SideProof):
            return values
        return cls(**{**values, "proof": None if values["proof"] is None else Proof(**values["proof"])})

    @property
    def holds(self) -> bool:
        """Whether every request, score and prediction was the same."""
        return self.proof is not None and self.proof.holds


def prove(ledger: Ledger, *, shared_store: bool) -> Proof | None:
    """The proof over a ledger's common items; None unless both sides claim one template and read likelihoods."""
    left, right = ledger.protocols["lm_eval"], ledger.protocols["inspect"]
    if not defines_same_text(left, right) or {left.readout, right.readout} != {"loglikelihood"}:
        return None
    pairs = [pair for pair in ledger.items.pairs if has_scores(pair[0]) and has_scores(pair[1])]
    if not pairs:
        return None
    requests = [both for one, other in pairs for both in zip(one.scores, other.scores, strict=True)]
    ours = mark_natively(build_table([one for one, _ in pairs]), left).picks
    theirs = mark_natively(build_table([other for _, other in pairs]), right).picks
    return Proof(
        num_items=len(pairs),
        num_requests=len(requests),
        num_with_ids=sum(None not in (one.request_digest, other.request_digest) for one, other in requests),
        token_identical=sum(_same_ids(one, other) for one, other in requests),
        logprob_identical=sum(one.logprob == other.logprob for one, other in requests),
        prediction_identical=int((ours == theirs).sum()),
        max_difference=max(abs(one.logprob - other.logprob) for one, other in requests),
        shared_store=shared_store,
    )


def _same_ids(one: ChoiceScore, other: ChoiceScore) -> bool:
    return one.request_digest is not None and one.request_digest == other.request_digest
