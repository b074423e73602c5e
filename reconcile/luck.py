"""What the seed of a random tie-break is worth: expectation and variance over all seeds, exactly, nothing sampled."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from reconcile.cells import NORMALISATION, TIE_BREAK, Grid, SideData, reads_generation
from reconcile.lattice import Switched


@dataclass(frozen=True, kw_only=True)
class Draw:
    """`weight` times the chance event that `gold` wins among an item's `tied` choices. Draws of one key share their
    priorities: the same item under the same seed.
    """

    key: str
    weight: Fraction
    tied: frozenset[int]
    gold: int

    @property
    def probability(self) -> Fraction:
        return Fraction(1, len(self.tied)) if self.gold in self.tied else Fraction(0)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A number over all seeds of a random tie-break."""

    expectation: Fraction
    variance: Fraction

    @property
    def deviation(self) -> float:
        """The standard deviation over seeds."""
        return float(self.variance) ** 0.5


def draw_key(key: str, seed: int) -> str:
    """Names the priorities that an item has under a seed."""
    return f"{seed}\x1f{key}"


def variance(draws: Iterable[Draw]) -> Fraction:
    """The variance over seeds of the sum of draws: draws of unlike keys are independent."""
    by_key: defaultdict[str, list[Draw]] = defaultdict(list)
    for draw in draws:
        if draw.gold in draw.tied and draw.weight:
            by_key[draw.key].append(draw)
    total = Fraction(0)
    for group in by_key.values():
        for one in group:
            for other in group:
                joint = _both_win(one, other) - one.probability * other.probability
                total += one.weight * other.weight * joint
    return total


def _both_win(one: Draw, other: Draw) -> Fraction:
    """P(both golds have the lowest priority of their own tied sets), every order of priorities being as likely.

    For unlike golds the lowest of the union must be one of them, outside the other's set.
    """
    lowest = Fraction(1, len(one.tied | other.tied))
    if one.gold == other.gold:
        return lowest
    first = Fraction(0) if one.gold in other.tied else lowest * other.probability
    second = Fraction(0) if other.gold in one.tied else lowest * one.probability
    return first + second


def tie_break_spread(grid: Grid, left: SideData, right: SideData, *, num_common: int) -> Spread | None:
    """The tie-break component over all seeds; None where the factor is not switched or neither side draws."""
    if TIE_BREAK not in grid.lattice.names or not {left.protocol.tie_break, right.protocol.tie_break} & {"random"}:
        return None
    realised = Fraction(int(grid.lattice.contributions[TIE_BREAK].sum()), grid.lattice.contribution_denominator)
    draws: list[Draw] = []
    for cell, weight in _weights(grid).items():
        if reads_generation(cell, lm_eval=left, inspect=right):
            continue
        side = right if grid.source in cell else left
        ruler = right if TIE_BREAK in cell else left
        if ruler.protocol.tie_break == "random" and side.table is not None:
            found, luck = _cell_draws(grid, cell, side, ruler, right if NORMALISATION in cell else left, weight)
            draws += found
            realised -= luck
    return Spread(expectation=realised / num_common, variance=variance(draws) / num_common**2)


def _weights(grid: Grid) -> dict[Switched, Fraction]:
    """How much of each cell's credit the tie-break component holds."""
    weights: defaultdict[Switched, Fraction] = defaultdict(Fraction)
    share = Fraction(1, len(grid.lattice.orders))
    for order in grid.lattice.orders:
        before = frozenset(order[: order.index(TIE_BREAK)])
        weights[before] += share
        weights[before | {TIE_BREAK}] -= share
    return dict(weights)


def _cell_draws(
    grid: Grid, cell: Switched, side: SideData, ruler: SideData, lengths: SideData, weight: Fraction
) -> tuple[list[Draw], Fraction]:
    """A cell's draws, and by how much this seed's outcome exceeds their expectation."""
    table = side.table
    assert table is not None
    tied = table.tied(lengths.protocol.normalisation, ruler.protocol.tie_atol)
    draws, luck = [], Fraction(0)
    for row in np.flatnonzero(tied.sum(axis=1) > 1).tolist():
        draw = Draw(
            key=draw_key(ruler.keys[row], ruler.protocol.seed),
            weight=weight,
            tied=frozenset(np.flatnonzero(tied[row]).tolist()),
            gold=int(table.gold[row]),
        )
        draws.append(draw)
        luck += weight * (int(grid.marks[cell].above[row]) - draw.probability)
    return draws, luck
