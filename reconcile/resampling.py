"""The paired bootstrap: whole questions are redrawn, all their numbers together, so every statistic is paired.

Items with the same numbers in the same stratum are interchangeable, so what is drawn is how many of each kind come up
(one multinomial a stratum): the same distribution as drawing items one by one, at a small part of the cost.
"""

import os
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_THREADS = min(4, os.cpu_count() or 1)


def group_numbers(labels: Sequence[Hashable]) -> NDArray[np.int64]:
    """Equal labels as equal integers from 0, in order of first appearance."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(label, len(known)) for label in labels], dtype=np.int64)


def stratified_means(
    values: Floats, *, strata: NDArray[np.int64], questions: NDArray[np.int64], num_resamples: int, seed: int
) -> Floats:
    """Resampled means (R, C) of the columns of `values` (N, C).

    Questions are redrawn with replacement within their stratum (N,), as many as it holds; items that ask the same
    question (N,) come and go together, in the stratum of the first of them.
    """
    totals, homes = _question_totals(values, strata, questions)
    parts = [totals[homes == stratum] for stratum in np.unique(homes)]
    first = np.random.default_rng(seed)
    generators = [first, *first.spawn(len(parts) - 1)]  # one each, so that threads cannot change what is drawn
    sums = np.zeros((num_resamples, totals.shape[1]))
    with ThreadPoolExecutor(max_workers=_THREADS) as threads:
        for found in threads.map(lambda part, rng: _redrawn_sums(part, rng, num_resamples), parts, generators):
            sums += found
    return sums[:, :-1] / sums[:, -1:]


def _redrawn_sums(totals: Floats, rng: np.random.Generator, num_resamples: int) -> Floats:
    """Column sums (R, C) over as many rows as `totals` (Q, C) has, redrawn with replacement."""
    kinds, numbers = np.unique(totals, axis=0, return_counts=True)
    size = int(numbers.sum())
    drawn = rng.multinomial(size, numbers / size, size=num_resamples).astype(np.float64)
    return np.asarray(np.einsum("rk,kc->rc", drawn, kinds))


def clustered_means(values: Floats, *, strata: NDArray[np.int64], num_resamples: int, seed: int) -> Floats:
    """Resampled means (R, C) where whole strata are redrawn: for statements about other subjects, not these."""
    sized = np.column_stack([values, np.ones(len(values))])
    totals = np.zeros((int(strata.max()) + 1, sized.shape[1]))
    np.add.at(totals, strata, sized)
    count = len(totals)
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=num_resamples)
    sums = drawn.astype(np.float64) @ totals
    return sums[:, :-1] / sums[:, -1:]


def percentile_bounds(resampled: Floats, level: float) -> tuple[Floats, Floats]:
    """The two percentiles (C,), (C,) of resampled statistics (R, C) that hold `level` between them."""
    tail = (1 - level) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail], axis=0)
    return low, high


def _question_totals(
    values: Floats, strata: NDArray[np.int64], questions: NDArray[np.int64]
) -> tuple[Floats, NDArray[np.int64]]:
    """Column sums and item count of each question (Q, C + 1), and the stratum (Q,) of its first item."""
    sized = np.column_stack([values, np.ones(len(values))])
    _, first, owner = np.unique(questions, return_index=True, return_inverse=True)
    totals = np.zeros((len(first), sized.shape[1]))
    np.add.at(totals, owner, sized)
    return totals, strata[first]
