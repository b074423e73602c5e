"""Which items tie for best, why, and what every tie-break makes of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from reconcile.choices import ChoiceTable
from reconcile.luck import Draw, Spread, draw_key, variance
from reconcile.matching import plain_text
from reconcile.normalisations import RuleScore, every_tie_break
from reconcile.runs import Protocol, SampleRecord

Kind = Literal["identical choice text", "identical tokens", "equal scores"]


@dataclass(frozen=True, kw_only=True)
class TiedItem:
    """An item whose best choices tie: which (original indices), why, and whether the right one is among them.

    "equal scores" of different texts come from low-precision logits or from a length rule.
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


def census(table: ChoiceTable, samples: Sequence[SampleRecord], protocol: Protocol) -> TieCensus:
    """Counts one side's ties; `samples` are the table's items."""
    tied = table.tied(protocol.normalisation, protocol.tie_atol)
    rows = np.flatnonzero(tied.sum(axis=1) > 1).tolist()
    items = tuple(_tied_item(samples[row], np.flatnonzero(tied[row]).tolist()) for row in rows)
    kinds: dict[Kind, int] = {"identical choice text": 0, "identical tokens": 0, "equal scores": 0}
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


def _tied_item(sample: SampleRecord, tied: list[int]) -> TiedItem:
    return TiedItem(
        key=sample.key.digest,
        subject=sample.subject,
        tied=tuple(tied),
        gold_among=sample.gold in tied,
        kind=_kind(sample, tied),
    )


def _kind(sample: SampleRecord, tied: list[int]) -> Kind:
    if len({plain_text(sample.choices[index]) for index in tied}) == 1:
        return "identical choice text"
    requests = {sample.scores[index].request_digest for index in tied} if sample.scores else {None}
    if len(requests) == 1 and None not in requests:
        return "identical tokens"
    return "equal scores"
