"""What a ledger's numbers say beyond its own items: intervals, tests, chance, ties, and the rules side by side.

On its items a gap is exact. Everything here is about other items like these, so it takes the items for a sample.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from reconcile.agreement import native_picks
from reconcile.chance import Chance, against_chance
from reconcile.exact import mean
from reconcile.ledger import ItemTable, Ledger, SideName
from reconcile.matching import content
from reconcile.normalisations import RuleScore, every_normalisation
from reconcile.resampling import clustered_means, group_numbers, percentile_bounds, stratified_means
from reconcile.significance import Interval, Test, clopper_pearson, discordant_interval, holm, paired_test, up_and_down
from reconcile.ties import TieCensus, census

FEW_DISCORDANT = 10
"""Below this many items that differ (for a score: that are right, or wrong), the interval is exact instead."""

ENOUGH_SUBJECTS = 30
"""From this many subjects on, redrawing whole subjects is meaningful."""

SIDES: tuple[SideName, SideName] = ("lm_eval", "inspect")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over the common items, its interval for other items like these, and a test of it being 0.

    `clustered` is the interval for other subjects as well; None below 30 subjects. A score has no test, a component
    that cannot act has neither interval nor test. `num_up` and `num_down` count the items above and below 0.
    """

    value: Fraction
    interval: Interval | None
    clustered: Interval | None = None
    test: Test | None = None
    num_up: int = 0
    num_down: int = 0


@dataclass(frozen=True, kw_only=True)
class SubjectGap:
    """One sub-task: scores and gap over its common items. Its test is adjusted over all sub-tasks (Holm)."""

    subject: str
    num_items: int
    lm_eval: Fraction
    inspect: Fraction
    gap: Estimate


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """All that is measured beside the ledger. Mappings by side hold "lm_eval" and "inspect".

    `gap` is over the common items (coverage and rounding have no sampling error of this kind). `components` are
    adjusted together (Holm). `chance` of a side always stands; `ties` and `normalisations` where it has likelihoods.
    """

    num_items: int
    num_questions: int
    num_subjects: int
    num_resamples: int
    seed: int
    level: float
    scores: Mapping[SideName, Estimate]
    gap: Estimate
    components: Mapping[str, Estimate]
    subjects: tuple[SubjectGap, ...]
    reported_stderr: Mapping[SideName, float | None]
    chance: Mapping[SideName, Chance]
    ties: Mapping[SideName, TieCensus | None]
    normalisations: Mapping[SideName, tuple[RuleScore, ...]]


def measure(ledger: Ledger, *, num_resamples: int = 10_000, seed: int = 0, level: float = 0.95) -> Statistics:
    """Everything about a ledger that needs more than its own arithmetic.

    The bootstrap is paired, redraws questions within their subject with all copies of one together, and depends on
    `seed` alone.
    """
    table = ledger.items
    samples = [left for left, _ in table.pairs]
    strata, questions = group_numbers([s.subject for s in samples]), group_numbers([content(s) for s in samples])
    columns = _columns(ledger)
    values = np.array([[float(value) for value in column] for column in columns.values()]).T
    bounds = percentile_bounds(
        stratified_means(values, strata=strata, questions=questions, num_resamples=num_resamples, seed=seed), level
    )
    num_subjects, picks = int(strata.max()) + 1, native_picks(ledger)
    outer = None
    if num_subjects >= ENOUGH_SUBJECTS:
        redrawn = clustered_means(values, strata=strata, num_resamples=num_resamples, seed=seed)
        outer = percentile_bounds(redrawn, level)
    estimates = {
        name: _estimate(name, column, place, bounds, outer, level)
        for place, (name, column) in enumerate(columns.items())
    }
    components = {name.removeprefix("component "): e for name, e in estimates.items() if name.startswith("component ")}
    return Statistics(
        num_items=table.num_items,
        num_questions=int(questions.max()) + 1,
        num_subjects=num_subjects,
        num_resamples=num_resamples,
        seed=seed,
        level=level,
        scores={side: replace(estimates[f"score {side}"], test=None) for side in SIDES},
        gap=estimates["gap"],
        components=_adjusted(_without_inert(components, ledger)),
        subjects=_subject_gaps(table, questions, num_resamples=num_resamples, seed=seed, level=level),
        reported_stderr={side: ledger.stderr.get(side) for side in SIDES},
        chance={side: _chance(ledger, side, [pair[place] for pair in picks]) for place, side in enumerate(SIDES)},
        ties={side: _ties(ledger, side) for side in SIDES},
        normalisations={side: _normalisations(ledger, side) for side in SIDES},
    )


def _columns(ledger: Ledger) -> dict[str, list[Fraction]]:
    """One exact number an item for each statistic: both scores, the gap, every component that is made of items."""
    table = ledger.items
    left, right = list(table.logged_lm_eval), list(table.logged_inspect)
    columns = {
        "score lm_eval": left,
        "score inspect": right,
        "gap": [one - other for one, other in zip(left, right, strict=True)],
    }
    for name, numerators in table.contributions.items():
        column = [Fraction(0)] * table.num_items
        for position, numerator in zip(table.replayed.tolist(), numerators, strict=True):
            if numerator:
                column[position] = Fraction(int(numerator), table.contribution_denominator)
        columns[f"component {name}"] = column
    return columns


def _estimate(
    name: str,
    column: Sequence[Fraction],
    place: int,
    bounds: tuple[np.ndarray, np.ndarray],
    outer: tuple[np.ndarray, np.ndarray] | None,
    level: float,
) -> Estimate:
    up, down = up_and_down(column)
    is_score = name.startswith("score ")
    interval = Interval(
        low=float(bounds[0][place]),
        high=float(bounds[1][place]),
        method="paired bootstrap within subjects",
        level=level,
    )
    if not is_score and up + down < FEW_DISCORDANT:
        interval = discordant_interval(column, level)
    if is_score and min(up, len(column) - up) < FEW_DISCORDANT and all(credit.denominator == 1 for credit in column):
        low, high = clopper_pearson(up, len(column), level)
        interval = Interval(low=low, high=high, method="Clopper-Pearson", level=level)
    clustered = None
    if outer is not None:
        clustered = Interval(
            low=float(outer[0][place]), high=float(outer[1][place]), method="bootstrap of whole subjects", level=level
        )
    return Estimate(
        value=mean(column),
        interval=interval,
        clustered=clustered,
        test=None if is_score else paired_test(column),
        num_up=up,
        num_down=down,
    )


def _without_inert(components: Mapping[str, Estimate], ledger: Ledger) -> dict[str, Estimate]:
    acting = {component.name for component in ledger.components if component.status == "acts"}
    return {
        name: estimate if name in acting else Estimate(value=estimate.value, interval=None)
        for name, estimate in components.items()
    }


def _adjusted(estimates: Mapping[str, Estimate]) -> dict[str, Estimate]:
    corrected = holm({name: e.test.p_value for name, e in estimates.items() if e.test is not None})
    return {
        name: e if e.test is None else replace(e, test=replace(e.test, adjusted=corrected[name]))
        for name, e in estimates.items()
    }


def _subject_gaps(
    table: ItemTable, questions: NDArray[np.int64], *, num_resamples: int, seed: int, level: float
) -> tuple[SubjectGap, ...]:
    """Sub-tasks in order of appearance; intervals as for the whole: exact below FEW_DISCORDANT, else the bootstrap."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, (left, _) in enumerate(table.pairs):
        places[left.subject].append(place)
    gaps = {}
    for subject, own in places.items():
        differences = [table.logged_lm_eval[place] - table.logged_inspect[place] for place in own]
        up, down = up_and_down(differences)
        if up + down < FEW_DISCORDANT:
            interval = discordant_interval(differences, level)
        else:
            values = np.array([[float(value)] for value in differences])
            means = stratified_means(
                values, strata=np.zeros(len(own), int), questions=questions[own], num_resamples=num_resamples, seed=seed
            )
            (low,), (high,) = percentile_bounds(means, level)
            interval = Interval(low=float(low), high=float(high), method="paired bootstrap", level=level)
        gaps[subject] = Estimate(
            value=mean(differences), interval=interval, test=paired_test(differences), num_up=up, num_down=down
        )
    return tuple(
        SubjectGap(
            subject=subject,
            num_items=len(places[subject]),
            lm_eval=mean(table.logged_lm_eval[place] for place in places[subject]),
            inspect=mean(table.logged_inspect[place] for place in places[subject]),
            gap=gap,
        )
        for subject, gap in _adjusted(gaps).items()
    )


def _chance(ledger: Ledger, side: SideName, picks: Sequence[int | None]) -> Chance:
    table, place = ledger.items, SIDES.index(side)
    samples = [pair[place] for pair in table.pairs]
    return against_chance(
        credits=table.logged_lm_eval if side == "lm_eval" else table.logged_inspect,
        num_choices=[len(sample.choices) for sample in samples],
        picks=picks,
        gold=[sample.gold for sample in samples],
        table=table.choices[side],
    )


def _ties(ledger: Ledger, side: SideName) -> TieCensus | None:
    choices = ledger.items.choices[side]
    if choices is None or not choices.num_items:
        return None
    place = SIDES.index(side)
    samples = [ledger.items.pairs[position][place] for position in ledger.items.replayed.tolist()]
    return census(choices, samples, ledger.protocols[side], logits_dtype=ledger.logits_dtypes[side])


def _normalisations(ledger: Ledger, side: SideName) -> tuple[RuleScore, ...]:
    choices = ledger.items.choices[side]
    if choices is None or not choices.num_items:
        return ()
    return every_normalisation(choices, ledger.protocols[side])
