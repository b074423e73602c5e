"""Exact tests and intervals for paired credits: nothing here draws a random number."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy import signal, stats

_DIRECT_CONVOLUTION = 10**8


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An interval at `level`, and how it was found."""

    low: float
    high: float
    method: str
    level: float = 0.95


@dataclass(frozen=True, kw_only=True)
class Test:
    """A two-sided p-value, how it was found, and `adjusted`, Holm's correction over the tests shown together."""

    p_value: float
    method: str
    adjusted: float | None = None


def mcnemar(only_left: int, only_right: int) -> float:
    """The exact two-sided p-value of McNemar's test: how many items only one side, or only the other, got right."""
    discordant = only_left + only_right
    return float(stats.binomtest(only_left, discordant).pvalue) if discordant else 1.0


def sign_flip(differences: Sequence[Fraction]) -> float:
    """P(|sum of randomly signed differences| >= |their sum|): the exact sign-flip test, for fractional credits.

    All 2^n signings are counted, by convolving one scaled binomial for each size of difference; for differences of
    one size this is McNemar's test.
    """
    sizes = Counter(abs(difference) for difference in differences if difference)
    if not sizes:
        return 1.0
    scale = math.lcm(*(size.denominator for size in sizes))
    unit = Fraction(math.gcd(*(int(size * scale) for size in sizes)), scale)
    steps = {int(size / unit): number for size, number in sizes.items()}
    observed = abs(int(sum(differences, Fraction(0)) / unit))
    mass = np.ones(1)
    for step, number in sorted(steps.items()):
        mass = _convolve(mass, _signed_sum(step, number))
    values = np.arange(len(mass)) - (len(mass) - 1) // 2
    return float(min(1.0, mass[np.abs(values) >= observed].sum()))


def _signed_sum(step: int, number: int) -> NDArray[np.float64]:
    """Probabilities of step * (2 * Binomial(number, 1/2) - number), from -step * number upward by 1."""
    mass = np.zeros(2 * step * number + 1)
    mass[:: 2 * step] = stats.binom.pmf(np.arange(number + 1), number, 0.5)
    return mass


def _convolve(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    if len(one) * len(other) <= _DIRECT_CONVOLUTION:
        return np.convolve(one, other)
    return np.maximum(signal.fftconvolve(one, other), 0.0)


def paired_test(differences: Sequence[Fraction]) -> Test:
    """McNemar's exact test where every difference is -1, 0 or 1, else the exact sign-flip test."""
    if all(difference in (-1, 0, 1) for difference in differences):
        up, down = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
        return Test(p_value=mcnemar(up, down), method="McNemar, exact")
    return Test(p_value=sign_flip(differences), method="sign flip, exact")


def discordant_interval(differences: Sequence[Fraction], level: float = 0.95) -> Interval:
    """An interval for the mean difference from few discordant items.

    Clopper-Pearson's for the share that is up among the discordant, mapped to the mean; where nothing is
    discordant, Clopper-Pearson's for how often anything would be.
    """
    num_items = len(differences)
    sizes = [abs(difference) for difference in differences if difference]
    if not sizes:
        most = 1 - ((1 - level) / 2) ** (1 / num_items) if num_items else 1.0
        return Interval(low=-most, high=most, method="Clopper-Pearson, no discordant item", level=level)
    up = sum(difference > 0 for difference in differences)
    share = stats.binomtest(up, len(sizes)).proportion_ci(confidence_level=level, method="exact")
    reach = float(sum(sizes, Fraction(0)) / num_items)
    return Interval(
        low=(2 * float(share.low) - 1) * reach,
        high=(2 * float(share.high) - 1) * reach,
        method=f"Clopper-Pearson on {len(sizes)} discordant items",
        level=level,
    )


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down adjusted p-values, by name."""
    adjusted: dict[str, float] = {}
    highest = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = highest
    return {name: adjusted[name] for name in p_values}


def guessing_test(total_credit: Fraction, num_choices: Sequence[int]) -> Test:
    """Whether a total credit is what guessing gives: exact, each item right with probability 1 / its choices."""
    mass = np.ones(1)
    for count, number in sorted(Counter(num_choices).items()):
        mass = _convolve(mass, stats.binom.pmf(np.arange(number + 1), number, 1 / count))
    low = mass[: math.floor(total_credit) + 1].sum()
    high = mass[math.ceil(total_credit) :].sum()
    return Test(p_value=float(min(1.0, 2 * min(low, high))), method="Poisson binomial, exact")
