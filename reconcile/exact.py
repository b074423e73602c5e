"""Sums of many fractions with few denominators: as exact as `sum`, without reducing after every addition."""

from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction


def exact_sum(values: Iterable[Fraction]) -> Fraction:
    """The exact sum."""
    numerators: defaultdict[int, int] = defaultdict(int)
    for value in values:
        numerators[value.denominator] += value.numerator
    return sum((Fraction(above, below) for below, above in numerators.items()), Fraction(0))


def mean(values: Iterable[Fraction]) -> Fraction:
    """The exact mean; 0 over nothing."""
    numbers = list(values)
    return exact_sum(numbers) / len(numbers) if numbers else Fraction(0)
