"""How far the same requests come out otherwise when they are computed another way, and which predictions that reaches.

Pure arithmetic on choice scores; `rescoring` computes them again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reconcile.choices import ChoiceTable, Floats, build_table, mark_natively
from reconcile.runs import Protocol, SampleRecord


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """One side's requests computed another way (`way`), on a sample of `num_items` items.

    `max_difference` and `median_difference` are those of the logprobs of its `num_requests` choices, in nats. `noise`
    is by how much the distance of two choices of one item changed at most, in the units of the side's normalised
    score; `typical_noise` is the median over items. Of all `num_predictions` of the side, `within_noise` rest on a
    distance of best from second no larger than `noise`, `within_typical` than `typical_noise`. `picks_changed` counts
    the sampled items that pick another choice.
    """

    side: str
    way: str
    num_items: int
    num_requests: int
    max_difference: float
    median_difference: float
    noise: float
    typical_noise: float
    picks_changed: int
    num_predictions: int
    within_noise: int
    within_typical: int


def compare(
    *,
    side: str,
    way: str,
    protocol: Protocol,
    everything: Sequence[SampleRecord],
    sampled: Sequence[SampleRecord],
    again: Sequence[SampleRecord],
) -> Numerics:
    """Holds the `again` computed scores of the `sampled` items against those logged; `everything` are all items whose
    predictions are counted. Every item carries scores that the protocol's rule can use.
    """
    before, after = build_table(sampled), build_table(again)
    differences = np.abs(after.logprobs - before.logprobs)[before.valid]
    noises = _noises(before, after, protocol)
    noise, typical = (float(noises.max()), float(np.median(noises))) if len(noises) else (0.0, 0.0)
    table = build_table(everything)
    margins = _margins(table, protocol)
    return Numerics(
        side=side,
        way=way,
        num_items=before.num_items,
        num_requests=len(differences),
        max_difference=float(differences.max()) if len(differences) else 0.0,
        median_difference=float(np.median(differences)) if len(differences) else 0.0,
        noise=noise,
        typical_noise=typical,
        picks_changed=int((mark_natively(before, protocol).picks != mark_natively(after, protocol).picks).sum()),
        num_predictions=table.num_items,
        within_noise=int((margins <= noise).sum()),
        within_typical=int((margins <= typical).sum()),
    )


def _noises(before: ChoiceTable, after: ChoiceTable, protocol: Protocol) -> Floats:
    """How far apart an item's choices moved (N,): only that can change a prediction, a common shift cannot."""
    moved = after.scores(protocol.normalisation) - before.scores(protocol.normalisation)
    return np.asarray(np.nanmax(moved, axis=1) - np.nanmin(moved, axis=1))


def _margins(table: ChoiceTable, protocol: Protocol) -> Floats:
    """The best score minus the second best (N,); infinite for an item with one choice."""
    scores = np.where(table.valid, table.scores(protocol.normalisation), -np.inf)
    if scores.shape[1] < 2:
        return np.full(table.num_items, np.inf)
    top = np.sort(scores, axis=1)[:, -2:]
    with np.errstate(invalid="ignore"):
        return np.asarray(np.nan_to_num(top[:, 1] - top[:, 0], nan=0.0, posinf=np.inf))
