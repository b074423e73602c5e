"""The verdict in one plain sentence: same tokens and logprobs or not, which parts differ, what closes the gap."""

from dataclasses import dataclass

from reconcile.ledger import Ledger
from reconcile.page_ledger import PageLedger
from reconcile.report.names import FACTORS, side_names
from reconcile.report.numbers import count, listed
from reconcile.runs import Protocol


@dataclass(frozen=True, kw_only=True)
class SameRequests:
    """Choices that both sides say the token ids of: how many had the same ids, how many of those the same logprob."""

    num_known: int
    num_tokens_same: int
    num_logprobs_same: int


def verdict_sentence(ledger: Ledger | PageLedger) -> str:
    """One sentence for a reader who reads no other."""
    if isinstance(ledger, PageLedger):
        return _page_verdict(ledger)
    clauses = (_tokens_clause(ledger), _protocol_clause(ledger), _closing_clause(ledger))
    sentence = "; ".join(clause for clause in clauses if clause)
    return sentence[0].upper() + sentence[1:] + "."


def same_requests(ledger: Ledger) -> SameRequests:
    """Counts over the choices of the common items."""
    known = tokens = logprobs = 0
    for left, right in ledger.items.pairs:
        for one, other in zip(left.scores, right.scores, strict=False):
            if one.request_digest is None or other.request_digest is None:
                continue
            known += 1
            if one.request_digest == other.request_digest:
                tokens += 1
                logprobs += one.logprob == other.logprob
    return SameRequests(num_known=known, num_tokens_same=tokens, num_logprobs_same=logprobs)


def differing_parts(left: Protocol, right: Protocol) -> list[str]:
    """The parts of two protocols that differ, by the names a report uses."""
    same_ties = left.tie_break == right.tie_break and left.tie_atol == right.tie_atol
    draws_apart = "random" in (left.tie_break, right.tie_break) and left.seed != right.seed
    differs = {
        "template": left.template != right.template,
        "number of shots": left.num_fewshot != right.num_fewshot,
        "chat template": left.chat_template != right.chat_template,
        FACTORS["length_normalisation"]: left.normalisation != right.normalisation,
        FACTORS["tie_break"]: not same_ties or draws_apart,
        FACTORS["readout"]: left.readout != right.readout,
    }
    return [name for name, apart in differs.items() if apart]


def _tokens_clause(ledger: Ledger) -> str:
    generating = [names for side, names in side_names(ledger.harnesses).items() if _generates(ledger.protocols[side])]
    if generating:
        return f"{listed(generating)} generated answers, so no scored request is common to both"
    same = same_requests(ledger)
    if not same.num_known:
        return "what tokens both scored is not known, because at least one side logged none"
    if same.num_tokens_same == 0:
        return f"the two never scored the same tokens (0 of {count(same.num_known, 'request')})"
    amount = "all" if same.num_tokens_same == same.num_known else f"{same.num_tokens_same} of"
    if same.num_logprobs_same == same.num_tokens_same:
        return f"{amount} {count(same.num_known, 'request')} had the same tokens, and those the same logprobs"
    apart = same.num_tokens_same - same.num_logprobs_same
    return f"{amount} {count(same.num_known, 'request')} had the same tokens, {apart} of those other logprobs"


def _generates(protocol: Protocol) -> bool:
    return protocol.readout == "generate"


def _protocol_clause(ledger: Ledger) -> str:
    parts = differing_parts(ledger.protocols["lm_eval"], ledger.protocols["inspect"])
    return f"the protocols differ in {listed(parts)}" if parts else "the protocols are the same in every part"


def _closing_clause(ledger: Ledger) -> str:
    names = side_names(ledger.harnesses)
    if not len(ledger.items.replayed):
        return "no item carries what is needed to switch one part alone"
    sets = ledger.closing_sets["from_lm_eval"]
    if sets == ((),):
        return "no item's credit differs between them"
    alone = " alone" if len(sets[0]) == 1 else ""
    parts = listed([FACTORS[name] for name in sets[0]])
    return f"giving {names['lm_eval']}'s side {names['inspect']}'s {parts}{alone} makes every item's credit agree"


def _page_verdict(ledger: PageLedger) -> str:
    bits = ledger.bits_per_byte
    names = side_names(ledger.harnesses)
    parts = [f"{name.replace('_', ' ')} {value:+.4f}" for name, value in bits.components.items() if value]
    made = f", made of {listed(parts)}" if parts else ""
    units = " and ".join(ledger.units[side] for side in names)
    return (
        f"In one unit, bits per byte of the original page, {names['lm_eval']} minus {names['inspect']} is "
        f"{bits.gap:+.4f}{made}; the perplexities as printed are per {units} and cannot be compared."
    )
