"""The choice scores of many items as padded arrays, so that every rule is one NumPy expression."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from llm.evaluation import rules
from reconcile.runs import Protocol, SampleRecord

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class ChoiceTable:
    """N items of up to K choices. Padding and unknown numbers are NaN; `valid` (N, K) marks real choices.

    `keys` (N,) are the items' digests, `gold` (N,) original indices.
    """

    keys: tuple[str, ...]
    gold: Ints
    valid: Bools
    logprobs: Floats
    num_chars: Floats
    num_bytes: Floats
    num_tokens: Floats
    unconditional: Floats

    @property
    def num_items(self) -> int:
        return len(self.keys)

    def divisor(self, rule: rules.Normalisation) -> Floats | None:
        """The lengths (N, K) a rule divides by, or None for a rule that divides by none."""
        return {"char": self.num_chars, "byte": self.num_bytes, "token": self.num_tokens}.get(rule)

    def obstacle(self, rule: rules.Normalisation) -> tuple[Bools, str]:
        """Which items (N,) the rule cannot be applied to, and what is missing for them."""
        if rule == "pmi":
            lacking = np.isnan(self.unconditional) & self.valid
            return np.any(lacking, axis=1), "the choices' logprobs after the empty context are not logged"
        lengths = self.divisor(rule)
        if lengths is None:
            return np.zeros(self.num_items, dtype=bool), ""
        lacking = ~(lengths >= 1) & self.valid
        return np.any(
            lacking, axis=1
        ), f"rule {rule!r} needs a length of at least 1 for every choice, as logged or known"

    def has_equal_lengths(self, rule: rules.Normalisation) -> Bools:
        """Which items (N,) the rule cannot reorder, because all choices have one length."""
        lengths = self.divisor(rule)
        if lengths is None:
            return np.full(self.num_items, rule == "none")
        first = lengths[:, :1]
        return ((lengths == first) | ~self.valid).all(axis=1)

    def scores(self, rule: rules.Normalisation) -> Floats:
        """Normalised scores (N, K); NaN in the padding and for items that `obstacle` names."""
        obstructed, _ = self.obstacle(rule)
        usable = self.valid & ~obstructed[:, None]
        lengths = self.divisor(rule)
        safe = None if lengths is None else np.where(usable, lengths, 1.0)
        scores = rules.normalise(
            self.logprobs,
            rule=rule,
            num_chars=safe,
            num_bytes=safe,
            num_tokens=safe,
            unconditional=self.unconditional,
        )
        return np.where(usable, scores, np.nan)

    def tied(self, rule: rules.Normalisation, tie_atol: float) -> Bools:
        """Mask (N, K) of the choices that share the best score."""
        return rules.tied_for_best(self.scores(rule), tie_atol=tie_atol, valid=self.valid)

    def select(self, rows: Ints | Bools) -> "ChoiceTable":
        """The same table over some of the items."""
        positions = np.arange(self.num_items)[rows].tolist()
        return ChoiceTable(
            keys=tuple(self.keys[position] for position in positions),
            gold=self.gold[rows],
            valid=self.valid[rows],
            logprobs=self.logprobs[rows],
            num_chars=self.num_chars[rows],
            num_bytes=self.num_bytes[rows],
            num_tokens=self.num_tokens[rows],
            unconditional=self.unconditional[rows],
        )


@dataclass(frozen=True, kw_only=True)
class Marks:
    """What a protocol makes of N items: `picks` (N,), -1 for none; credits `above / below` (N,)."""

    picks: Ints
    above: Ints
    below: Ints

    def fractions(self) -> list[Fraction]:
        """The credits, one exact fraction an item."""
        known: dict[tuple[int, int], Fraction] = {}
        ratios = zip(self.above.tolist(), self.below.tolist(), strict=True)
        return [known.get(ratio) or known.setdefault(ratio, Fraction(*ratio)) for ratio in ratios]

    def mean(self) -> Fraction:
        """The mean credit, exactly."""
        sums = [Fraction(int(self.above[self.below == d].sum()), int(d)) for d in np.unique(self.below)]
        return sum(sums, Fraction(0)) / max(len(self.below), 1)


def mark(
    table: ChoiceTable,
    *,
    normalisation: rules.Normalisation,
    tie_break: rules.TieBreak,
    seed: int,
    tie_atol: float,
    keys: Sequence[str] | None = None,
) -> Marks:
    """Picks and credits of every item under one normalisation and tie-break; random ties draw by `keys`, if not the
    table's own.
    """
    tied = table.tied(normalisation, tie_atol)
    draws = table.keys if keys is None else keys
    above, below = rules.credit_ratios(tied, table.gold, rule=tie_break, seed=seed, keys=draws)
    picks = rules.resolve(tied, rule=tie_break, seed=seed, keys=draws)
    return Marks(picks=picks, above=above, below=below)


def mark_natively(table: ChoiceTable, protocol: Protocol) -> Marks:
    """Picks and credits under a protocol's own rules."""
    return mark(
        table,
        normalisation=protocol.normalisation,
        tie_break=protocol.tie_break,
        seed=protocol.seed,
        tie_atol=protocol.tie_atol,
    )


def has_scores(sample: SampleRecord) -> bool:
    """Whether every choice of the item carries a score."""
    return bool(sample.choices) and len(sample.scores) == len(sample.choices)


def build_table(samples: Sequence[SampleRecord]) -> ChoiceTable:
    """Arrays of the samples' choice scores; every sample must satisfy `has_scores`.

    A log that counts no tokens still tells the order of one-letter continuations: they are taken as one token each.
    """
    width = max((len(sample.scores) for sample in samples), default=1)
    shape = (len(samples), width)
    columns = np.full((*shape, 5), np.nan)
    valid = np.zeros(shape, dtype=bool)
    for row, sample in enumerate(samples):
        count = len(sample.scores)
        valid[row, :count] = True
        columns[row, :count] = [
            (
                score.logprob,
                score.num_chars,
                score.num_bytes,
                np.nan if score.num_tokens is None else score.num_tokens,
                np.nan if score.unconditional_logprob is None else score.unconditional_logprob,
            )
            for score in sample.scores
        ]
        if np.isnan(columns[row, :count, 3]).any() and _is_letters(sample.continuations):
            columns[row, :count, 3] = 1
    return ChoiceTable(
        keys=tuple(sample.key.digest for sample in samples),
        gold=np.array([sample.gold for sample in samples], dtype=np.int64),
        valid=valid,
        logprobs=columns[..., 0],
        num_chars=columns[..., 1],
        num_bytes=columns[..., 2],
        num_tokens=columns[..., 3],
        unconditional=columns[..., 4],
    )


def _is_letters(continuations: Sequence[str]) -> bool:
    texts = [continuation.strip() for continuation in continuations]
    return bool(texts) and all(len(text) == 1 and text.isalpha() for text in texts)
