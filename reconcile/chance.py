"""Is a score above guessing at all, and where do the picks fall? Stands above every gap."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from reconcile.choices import ChoiceTable
from reconcile.exact import exact_sum, mean
from reconcile.significance import Test, guessing_test


@dataclass(frozen=True, kw_only=True)
class Chance:
    """One side against guessing, over the common items.

    `level` is the mean of 1 / (number of choices). `picks` and `gold` count original positions, `no_pick` the items
    where the side names no choice. `probability_mass` is the mean probability the model gives all choices together,
    None without likelihoods.
    """

    score: Fraction
    level: Fraction
    num_items: int
    test: Test
    picks: tuple[int, ...]
    gold: tuple[int, ...]
    no_pick: int
    probability_mass: float | None

    @property
    def distance(self) -> Fraction:
        return self.score - self.level

    def distinguishable(self, alpha: float = 0.05) -> bool:
        """Whether the score is told apart from guessing at that level."""
        return self.test.p_value <= alpha


def against_chance(
    *,
    credits: Sequence[Fraction],
    num_choices: Sequence[int],
    picks: Sequence[int | None],
    gold: Sequence[int],
    table: ChoiceTable | None,
) -> Chance:
    """Measures one side's credits, picks and likelihoods against guessing."""
    return Chance(
        score=mean(credits),
        level=mean(Fraction(1, count) for count in num_choices),
        num_items=len(credits),
        test=guessing_test(exact_sum(credits), num_choices),
        picks=_positions([pick for pick in picks if pick is not None], max(num_choices)),
        gold=_positions(gold, max(num_choices)),
        no_pick=sum(pick is None for pick in picks),
        probability_mass=None if table is None or not table.num_items else probability_mass(table),
    )


def probability_mass(table: ChoiceTable) -> float:
    """The mean over items of the sum of exp(logprob) over an item's choices."""
    masses = np.exp(np.where(table.valid, table.logprobs, -np.inf)).sum(axis=1)
    return float(masses.mean())


def _positions(indices: Sequence[int], width: int) -> tuple[int, ...]:
    counted = np.bincount([index for index in indices if 0 <= index < width], minlength=width)
    return tuple(int(count) for count in counted)
