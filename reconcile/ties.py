"""Which items tie for best, why, and what every tie-break makes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import numpy as np

from reconcile.choices import ChoiceTable, Floats
from reconcile.ledger import Ledger, SideName
from reconcile.luck import Draw, Spread, draw_key, variance
from reconcile.matching import plain_text
from reconcile.normalisations import RuleScore, every_tie_break
from reconcile.runs import Protocol, SampleRecord

Kind = Literal[
    "identical choice text",
    "identical tokens",
    "low-precision logits",
    "length rule",
    "within tie_atol",
    "equal scores",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

_LOW_PRECISION = ("bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class TiedItem:
    """An item whose best choices tie: which (original indices), why, and whether the right one is among them.

    "identical tokens" is what truncation leaves of unlike texts. "low-precision logits" are equal logprobs where the
    log says that logits had few bits; "length rule" makes one score of unlike logprobs; "equal scores" has no such
    reason.
    """

    key: str
    subject: str
    tied: tuple[int, ...]
    gold_among: bool
    kind: Kind


@dataclass(frozen=True, kw_only=True)
class TieCensus:
    """One side's ties under its own normalisation. `rules` is what each tie-break would score on the same items;
    `random` is the random rule's score over all seeds.
    """

    num_items: int
    items: tuple[TiedItem, ...]
    kinds: dict[Kind, int]
    rules: tuple[RuleScore, ...]
    random: Spread


def census(
    table: ChoiceTable, samples: Sequence[SampleRecord], protocol: Protocol, *, logits_dtype: str | None = None
) -> TieCensus:
    """Counts one side's ties; `samples` are the table's items, `logits_dtype` is the log's, None where it is silent."""
    tied = table.tied(protocol.normalisation, protocol.tie_atol)
    scores_of = table.scores(protocol.normalisation)
    rows = np.flatnonzero(tied.sum(axis=1) > 1).tolist()
    items = tuple(
        _tied_item(samples[row], np.flatnonzero(tied[row]).tolist(), scores_of[row], logits_dtype in _LOW_PRECISION)
        for row in rows
    )
    kinds: dict[Kind, int] = dict.fromkeys(KINDS, 0)
    for item in items:
        kinds[item.kind] += 1
    scores = every_tie_break(table, protocol)
    expectation = next(score.score for score in scores if score.rule == "fractional")
    assert expectation is not None
    draws = [
        Draw(
            key=draw_key(table.keys[row], protocol.seed),
            weight=Fraction(1, table.num_items),
            tied=frozenset(item.tied),
            gold=samples[row].gold,
        )
        for row, item in zip(rows, items, strict=True)
    ]
    return TieCensus(
        num_items=table.num_items,
        items=items,
        kinds=kinds,
        rules=scores,
        random=Spread(expectation=expectation, variance=variance(draws)),
    )


def tied_items(ledger: Ledger) -> Mapping[SideName, Sequence[bool | None]]:
    """By side, whether each common item's best choices tie under the side's own normalisation; None where the ledger
    has no likelihoods of its choices.
    """
    found: dict[SideName, list[bool | None]] = {}
    for side, choices in ledger.items.choices.items():
        found[side] = [None] * ledger.items.num_items
        if choices is None or not choices.num_items:
            continue
        protocol = ledger.protocols[side]
        several = choices.tied(protocol.normalisation, protocol.tie_atol).sum(axis=1) > 1
        for position, tied in zip(ledger.items.replayed.tolist(), several.tolist(), strict=True):
            found[side][position] = tied
    return found


def _tied_item(sample: SampleRecord, tied: list[int], scores: Floats, few_bits: bool) -> TiedItem:
    return TiedItem(
        key=sample.key.digest,
        subject=sample.subject,
        tied=tuple(tied),
        gold_among=sample.gold in tied,
        kind=_kind(sample, tied, scores, few_bits),
    )


def _kind(sample: SampleRecord, tied: list[int], scores: Floats, few_bits: bool) -> Kind:
    if len({plain_text(sample.choices[index]) for index in tied}) == 1:
        return "identical choice text"
    requests = {sample.scores[index].request_digest for index in tied} if sample.scores else {None}
    if len(requests) == 1 and None not in requests:
        return "identical tokens"
    if len(set(scores[tied].tolist())) > 1:
        return "within tie_atol"
    if len({sample.scores[index].logprob for index in tied}) > 1:
        return "length rule"
    return "low-precision logits" if few_bits else "equal scores"
