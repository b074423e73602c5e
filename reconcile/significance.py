"""Exact tests and intervals for paired credits: nothing here draws a random number."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy import signal, special, stats

from reconcile.exact import exact_sum

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
    ratios = Counter((d.numerator, d.denominator) for d in differences if d.numerator)
    if not ratios:
        return 1.0
    scale = math.lcm(*(below for _, below in ratios))
    unit = math.gcd(*(above * scale // below for above, below in ratios))
    steps: Counter[int] = Counter()
    observed = 0
    for (above, below), number in ratios.items():
        step = above * scale // below // unit
        steps[abs(step)] += number
        observed += step * number
    mass = np.ones(1)
    for step, number in sorted(steps.items()):
        mass = _convolve(mass, _signed_sum(step, number))
    values = np.arange(len(mass)) - (len(mass) - 1) // 2
    return float(min(1.0, mass[np.abs(values) >= abs(observed)].sum()))


def _signed_sum(step: int, number: int) -> NDArray[np.float64]:
    """Probabilities of step * (2 * Binomial(number, 1/2) - number), from -step * number upward by 1."""
    mass = np.zeros(2 * step * number + 1)
    mass[:: 2 * step] = stats.binom.pmf(np.arange(number + 1), number, 0.5)
    return mass


def _convolve(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    if len(one) * len(other) <= _DIRECT_CONVOLUTION:
        return np.convolve(one, other)
    return np.maximum(signal.fftconvolve(one, other), 0.0)


def up_and_down(differences: Sequence[Fraction]) -> tuple[int, int]:
    """How many differences are above and below 0."""
    return sum(d.numerator > 0 for d in differences), sum(d.numerator < 0 for d in differences)


def paired_test(differences: Sequence[Fraction]) -> Test:
    """McNemar's exact test where every difference is -1, 0 or 1, else the exact sign-flip test."""
    if all(d.denominator == 1 and -1 <= d.numerator <= 1 for d in differences):
        return Test(p_value=mcnemar(*up_and_down(differences)), method="McNemar, exact")
    return Test(p_value=sign_flip(differences), method="sign flip, exact")


def clopper_pearson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """The exact binomial interval for a share."""
    tail = (1 - level) / 2
    low = special.betaincinv(successes, trials - successes + 1, tail) if successes else 0.0
    high = special.betaincinv(successes + 1, trials - successes, 1 - tail) if successes < trials else 1.0
    return float(low), float(high)


def discordant_interval(differences: Sequence[Fraction], level: float = 0.95) -> Interval:
    """An interval for the mean difference from few discordant items.

    Clopper-Pearson's for the share that is up among the discordant, mapped to the mean; where nothing is
    discordant, Clopper-Pearson's for how often anything would be.
    """
    num_items = len(differences)
    up, down = up_and_down(differences)
    if not up + down:
        _, most = clopper_pearson(0, num_items, level) if num_items else (0.0, 1.0)
        return Interval(low=-most, high=most, method="Clopper-Pearson, no discordant item", level=level)
    low, high = clopper_pearson(up, up + down, level)
    reach = float(exact_sum(abs(difference) for difference in differences) / num_items)
    return Interval(
        low=(2 * low - 1) * reach,
        high=(2 * high - 1) * reach,
        method=f"Clopper-Pearson on {up + down} discordant items",
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
