"""The exact arithmetic of a gap between two protocols: cells, Shapley values, interactions, closing sets.

A factor is a part of the protocol that is switched from lm-eval's value to Inspect's. A cell is the set of factors
that are switched; it holds the credits of N items as integers over one common denominator, so that nothing rounds.
This module knows nothing of harnesses, choices or rules.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Switched = frozenset[str]
"""The factors that stand at Inspect's value."""

Integers = NDArray[np.object_]
"""Python integers (N,), which cannot overflow."""


@dataclass(frozen=True, kw_only=True)
class Factor:
    """`after` names the factor that must be switched before this one: a cell that breaks this has no meaning."""

    name: str
    after: str | None = None


@dataclass(frozen=True)
class Lattice:
    """All feasible cells over some factors. `credits[switched] / denominator` are the items' credits in a cell."""

    factors: tuple[Factor, ...]
    credits: Mapping[Switched, Integers]
    denominator: int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(factor.name for factor in self.factors)

    @property
    def all_switched(self) -> Switched:
        return frozenset(self.names)

    @property
    def num_items(self) -> int:
        return len(self.credits[frozenset()])

    def score(self, switched: Iterable[str]) -> Fraction:
        """The mean credit of a cell, exactly (0 over no items)."""
        return self._mean(self.credits[frozenset(switched)], self.denominator)

    def _mean(self, numerators: Integers, denominator: int) -> Fraction:
        if not self.num_items:
            return Fraction(0)
        return Fraction(int(numerators.sum()), denominator * self.num_items)

    @cached_property
    def orders(self) -> tuple[tuple[str, ...], ...]:
        """The orders in which the factors can be switched."""
        return feasible_orders(self.factors)

    @cached_property
    def contributions(self) -> dict[str, Integers]:
        """Each factor's Shapley value item by item: numerators (N,) over `denominator * len(orders)`.

        A contribution is what lm-eval's value earns over Inspect's, averaged over the feasible orders
        (precedence-constrained Shapley value, Faigle & Kern 1992). They add up, item by item, to
        credit(nothing switched) - credit(all switched).
        """
        weights: dict[tuple[str, Switched], int] = {}
        for order in self.orders:
            for place, name in enumerate(order):
                step = (name, frozenset(order[:place]))
                weights[step] = weights.get(step, 0) + 1
        total = {name: np.zeros(self.num_items, dtype=object) for name in self.names}
        for (name, before), weight in weights.items():
            total[name] = total[name] + weight * (self.credits[before] - self.credits[before | {name}])
        return total

    @property
    def contribution_denominator(self) -> int:
        return self.denominator * len(self.orders)

    def shapley(self, name: str) -> Fraction:
        """A factor's share of score(nothing) - score(everything), exactly."""
        return self._mean(self.contributions[name], self.contribution_denominator)

    def edges(self, name: str) -> Iterable[tuple[Switched, Switched]]:
        """The pairs of feasible cells that differ in one factor alone, lm-eval's value first."""
        for before in self.credits:
            if name not in before and before | {name} in self.credits:
                yield before, before | {name}

    def single_from_lm_eval(self, name: str) -> Fraction | None:
        """The gap when this factor alone is switched away from lm-eval's protocol; None where that is no cell."""
        return self.alternating((name,), frozenset())

    def single_from_inspect(self, name: str) -> Fraction | None:
        """The gap when this factor alone is switched back from Inspect's protocol; None where that is no cell."""
        return self.alternating((name,), self.all_switched - {name})

    def alternating(self, names: tuple[str, ...], base: Switched) -> Fraction | None:
        """Sum of (-1)^|W| score(base + W) over the subsets W of `names`: for two, v00 - v10 - v01 + v11."""
        total = Fraction(0)
        for size in range(len(names) + 1):
            for subset in itertools.combinations(names, size):
                cell = base | frozenset(subset)
                if cell not in self.credits:
                    return None
                total += (-1) ** size * self.score(cell)
        return total

    def closing_sets(self, *, from_inspect: bool = False) -> tuple[tuple[str, ...], ...]:
        """The smallest sets of factors that, switched from one end, give every item the other end's credit.

        One empty set means that no item differs.
        """
        start, goal = (self.all_switched, frozenset()) if from_inspect else (frozenset(), self.all_switched)
        for size in range(len(self.names) + 1):
            found = [
                subset
                for subset in itertools.combinations(self.names, size)
                if self._same_credits(start ^ frozenset(subset), goal)
            ]
            if found:
                return tuple(found)
        raise AssertionError("switching every factor reaches the other end")

    def _same_credits(self, one: Switched, other: Switched) -> bool:
        return one in self.credits and bool(np.array_equal(self.credits[one], self.credits[other]))


def feasible_orders(factors: tuple[Factor, ...]) -> tuple[tuple[str, ...], ...]:
    """The orders in which the factors can be switched (linear extensions of the precedences)."""
    needs = {factor.name: factor.after for factor in factors}
    return tuple(
        order
        for order in itertools.permutations(needs)
        if all(needs[name] is None or needs[name] in order[:place] for place, name in enumerate(order))
    )


def shapley_values(factors: tuple[Factor, ...], value: Callable[[Switched], Fraction]) -> dict[str, Fraction]:
    """The Shapley values of any exact function of the cells; they add up to value(nothing) - value(everything)."""
    orders = feasible_orders(factors)
    total = {factor.name: Fraction(0) for factor in factors}
    for order in orders:
        for place, name in enumerate(order):
            before = frozenset(order[:place])
            total[name] += value(before) - value(before | {name})
    return {name: amount / len(orders) for name, amount in total.items()}


def feasible_cells(factors: tuple[Factor, ...]) -> list[Switched]:
    """Every set of factors that keeps the precedences, smallest first."""
    names = [factor.name for factor in factors]
    cells = (frozenset(c) for size in range(len(names) + 1) for c in itertools.combinations(names, size))
    return [cell for cell in cells if all(f.name not in cell or f.after is None or f.after in cell for f in factors)]


def build_lattice(
    factors: tuple[Factor, ...], ratios: Mapping[Switched, tuple[NDArray[np.int64], NDArray[np.int64]]]
) -> Lattice:
    """A lattice from each feasible cell's credits as numerators and denominators (N,), (N,)."""
    denominator = math.lcm(1, *(int(d) for _, below in ratios.values() for d in np.unique(below)))
    credits = {
        cell: above.astype(object) * (denominator // below.astype(object)) for cell, (above, below) in ratios.items()
    }
    return Lattice(factors=factors, credits=credits, denominator=denominator)
