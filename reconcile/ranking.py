"""Several models under both harnesses: does each harness put them in the same order, and how sure is that?"""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from llm.errors import InputError
from reconcile.agreement import FEWEST_SUBJECTS
from reconcile.coefficients import Coefficient, kendall, kendall_rows, order_signs, pearson
from reconcile.exact import mean
from reconcile.ledger import Ledger
from reconcile.resampling import group_numbers, percentile_bounds, stratified_means
from reconcile.significance import Interval

_RANDOM_SUBTASKS, _RANDOM_SIZE = 40, 20


@dataclass(frozen=True, kw_only=True)
class ModelCredits:
    """One model's logged credits under both harnesses, item by item (N,); `items` identify them across models."""

    name: str
    items: tuple[tuple[str, int], ...]
    subjects: tuple[str, ...]
    questions: tuple[str, ...]
    lm_eval: tuple[Fraction, ...]
    inspect: tuple[Fraction, ...]

    @classmethod
    def of(cls, name: str, ledger: Ledger) -> "ModelCredits":
        """The common items of a ledger."""
        table = ledger.items
        lefts = [left for left, _ in table.pairs]
        return cls(
            name=name,
            items=tuple((left.key.digest, left.key.occurrence) for left in lefts),
            subjects=tuple(left.subject for left in lefts),
            questions=tuple("\x1f".join((left.question, *left.choices)) for left in lefts),
            lm_eval=table.logged_lm_eval,
            inspect=table.logged_inspect,
        )


@dataclass(frozen=True, kw_only=True)
class Flip:
    """Two models that the harnesses put in opposite order, and the share of resamples in which they do."""

    first: str
    second: str
    gap_lm_eval: Fraction
    gap_inspect: Fraction
    share_of_resamples: float


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Models over the items that all of them share; `subtask_gaps` are lm-eval's score minus Inspect's by sub-task.

    `correlations` relate the two harnesses' scores of one model over sub-tasks; `matrix` does the same for every pair
    of (model, harness) rows, in the order of `rows`. `tau` is Kendall's tau-b between the two orders of the models;
    its interval resamples items jointly for all models and both harnesses. `ties` are pairs that one harness alone
    puts level.
    """

    num_items: int
    scores: Mapping[str, tuple[Fraction, Fraction]]
    subtask_gaps: Mapping[str, Mapping[str, Fraction]]
    correlations: Mapping[str, Coefficient]
    rows: tuple[tuple[str, str], ...]
    matrix: tuple[tuple[Coefficient, ...], ...]
    tau: Coefficient
    tau_interval: Interval | None
    flips: tuple[Flip, ...]
    ties: tuple[tuple[str, str], ...]


def rank_models(models: Sequence[ModelCredits], *, num_resamples: int = 10_000, seed: int = 0) -> Ranking:
    """Compares the harnesses' orders of two or more models.

    Raises:
        InputError: fewer than two models, a name twice, or no item that all models share.
    """
    shared = _shared(models)
    credits = np.array([[float(c) for c in column] for model in shared for column in (model.lm_eval, model.inspect)]).T
    first = shared[0]
    strata, questions = group_numbers(first.subjects), group_numbers(first.questions)
    resampled = stratified_means(credits, strata=strata, questions=questions, num_resamples=num_resamples, seed=seed)
    ours, theirs = resampled[:, 0::2], resampled[:, 1::2]
    scores = {model.name: (mean(model.lm_eval), mean(model.inspect)) for model in shared}
    rows = tuple((model.name, harness) for model in shared for harness in ("lm_eval", "inspect"))
    by_subtask = _subtask_scores(credits, strata, seed)
    return Ranking(
        num_items=len(first.items),
        scores=scores,
        subtask_gaps={model.name: _gaps(model) for model in shared},
        correlations={
            model.name: pearson(by_subtask[:, 2 * place], by_subtask[:, 2 * place + 1])
            for place, model in enumerate(shared)
        },
        rows=rows,
        matrix=tuple(
            tuple(pearson(by_subtask[:, one], by_subtask[:, other]) for other in range(len(rows)))
            for one in range(len(rows))
        ),
        tau=kendall([float(pair[0]) for pair in scores.values()], [float(pair[1]) for pair in scores.values()]),
        tau_interval=_tau_interval(ours, theirs),
        flips=_flips(scores, ours, theirs),
        ties=_one_sided_ties(scores),
    )


def _shared(models: Sequence[ModelCredits]) -> list[ModelCredits]:
    """The models cut to the items they all have, in the first one's order."""
    names = [model.name for model in models]
    if len(models) < 2 or len(set(names)) < len(names):
        raise InputError(f"a ranking needs two or more models of different names; given: {', '.join(names) or 'none'}")
    common = set.intersection(*(set(model.items) for model in models))
    order = [item for item in models[0].items if item in common]
    if not order:
        raise InputError(f"the runs of {', '.join(names)} share no item: compare runs over the same data")
    cut = []
    for model in models:
        place = {item: index for index, item in enumerate(model.items)}
        chosen = [place[item] for item in order]
        cut.append(
            ModelCredits(
                name=model.name,
                items=tuple(order),
                subjects=tuple(model.subjects[index] for index in chosen),
                questions=tuple(model.questions[index] for index in chosen),
                lm_eval=tuple(model.lm_eval[index] for index in chosen),
                inspect=tuple(model.inspect[index] for index in chosen),
            )
        )
    return cut


def subtask_gaps(models: Sequence[ModelCredits]) -> dict[str, dict[str, Fraction]]:
    """Each model's gap on each sub-task, over the items that all models share.

    Raises:
        InputError: as `rank_models`.
    """
    return {model.name: _gaps(model) for model in _shared(models)}


def _gaps(model: ModelCredits) -> dict[str, Fraction]:
    differences: defaultdict[str, list[Fraction]] = defaultdict(list)
    for subject, ours, theirs in zip(model.subjects, model.lm_eval, model.inspect, strict=True):
        differences[subject].append(ours - theirs)
    return {subject: mean(differences[subject]) for subject in sorted(differences)}


def _subtask_scores(credits: NDArray[np.float64], strata: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
    """Scores (S, C) over the sub-tasks, or over random ones where the items belong to fewer than three."""
    number = len(credits)
    if int(strata.max()) + 1 >= FEWEST_SUBJECTS:
        parts = [np.flatnonzero(strata == stratum) for stratum in np.unique(strata)]
    else:
        rng = np.random.default_rng(seed)
        size = min(_RANDOM_SIZE, number)
        parts = [rng.choice(number, size=size, replace=False) for _ in range(_RANDOM_SUBTASKS)]
    return np.array([credits[part].mean(axis=0) for part in parts])


def _tau_interval(ours: NDArray[np.float64], theirs: NDArray[np.float64], level: float = 0.95) -> Interval | None:
    taus = kendall_rows(ours, theirs)
    defined = taus[np.isfinite(taus)]
    if not len(defined):
        return None
    low, high = percentile_bounds(defined[:, None], level)
    lost = len(taus) - len(defined)
    method = "bootstrap of items, jointly" + (f"; {lost} resamples without an order left out" if lost else "")
    return Interval(low=float(low[0]), high=float(high[0]), method=method, level=level)


def _flips(
    scores: Mapping[str, tuple[Fraction, Fraction]], ours: NDArray[np.float64], theirs: NDArray[np.float64]
) -> tuple[Flip, ...]:
    flips = []
    for (one, first), (other, second) in itertools.combinations(enumerate(scores), 2):
        gaps = tuple(scores[first][side] - scores[second][side] for side in (0, 1))
        if gaps[0] * gaps[1] < 0:
            signs = order_signs(ours[:, one] - ours[:, other]) * order_signs(theirs[:, one] - theirs[:, other])
            flips.append(
                Flip(
                    first=first,
                    second=second,
                    gap_lm_eval=gaps[0],
                    gap_inspect=gaps[1],
                    share_of_resamples=float((signs < 0).mean()),
                )
            )
    return tuple(flips)


def _one_sided_ties(scores: Mapping[str, tuple[Fraction, Fraction]]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (first, second)
        for first, second in itertools.combinations(scores, 2)
        if (scores[first][0] == scores[second][0]) != (scores[first][1] == scores[second][1])
    )
