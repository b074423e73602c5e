"""Coefficients of agreement, each with what makes it undefined and what it does not see."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

_SAME_ORDER = 1e-12
"""Scores closer than this are equal: sums of fractional credits in another order differ in their last digits."""


@dataclass(frozen=True, kw_only=True)
class Coefficient:
    """A coefficient over `num_points`; `value` is None where it is not defined, and `reason` says why.

    `mean_difference` is the mean of first minus second: a correlation of 1 still allows a constant offset.
    """

    value: float | None
    num_points: int
    reason: str | None = None
    mean_difference: float | None = None


def pearson(first: ArrayLike, second: ArrayLike) -> Coefficient:
    """Pearson's r of paired scores."""
    return _correlation(first, second, lambda one, other: float(stats.pearsonr(one, other).statistic))


def spearman(first: ArrayLike, second: ArrayLike) -> Coefficient:
    """Spearman's rank correlation of paired scores; equal scores share their mean rank."""
    return _correlation(first, second, lambda one, other: float(stats.spearmanr(one, other).statistic))


def kendall(first: ArrayLike, second: ArrayLike) -> Coefficient:
    """Kendall's tau-b of paired scores."""
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    return _correlation(one, other, lambda a, b: float(kendall_rows(a[None], b[None])[0]))


def kendall_rows(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Kendall's tau-b (R,) of each row of paired scores (R, M), (R, M); NaN where one row is constant."""
    left, right = np.triu_indices(first.shape[1], k=1)
    one, other = order_signs(first[:, left] - first[:, right]), order_signs(second[:, left] - second[:, right])
    scale = np.sqrt((one**2).sum(axis=1) * (other**2).sum(axis=1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((one * other).sum(axis=1) / scale)


def order_signs(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """-1, 0 or 1: which of two scores is the higher."""
    return np.where(np.abs(differences) <= _SAME_ORDER, 0.0, np.sign(differences))


def cohen_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> Coefficient:
    """Cohen's kappa of paired labels: agreement beyond what the two sides' label frequencies give by luck."""
    number = len(first)
    if not number:
        return Coefficient(value=None, num_points=0, reason="there are no labels to compare")
    ours, theirs = Counter(first), Counter(second)
    observed = sum(one == other for one, other in zip(first, second, strict=True))
    by_luck = sum(ours[label] * theirs[label] for label in ours)
    if by_luck == number**2:
        return Coefficient(value=None, num_points=number, reason="both sides give one and the same label throughout")
    return Coefficient(value=(observed * number - by_luck) / (number**2 - by_luck), num_points=number)


def _correlation(
    first: ArrayLike, second: ArrayLike, compute: Callable[[NDArray[np.float64], NDArray[np.float64]], float]
) -> Coefficient:
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    reason = _obstacle(one, other)
    return Coefficient(
        value=compute(one, other) if reason is None else None,
        num_points=len(one),
        reason=reason,
        mean_difference=float((one - other).mean()) if len(one) else None,
    )


def _obstacle(one: NDArray[np.float64], other: NDArray[np.float64]) -> str | None:
    if len(one) < 2:
        return f"{len(one)} points do not make a correlation"
    for scores, side in ((one, "first"), (other, "second")):
        if np.ptp(scores) <= _SAME_ORDER:
            return f"the {side} scores are all {scores[0]:g}, so they vary with nothing"
    return None
