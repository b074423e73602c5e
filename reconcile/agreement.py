"""How far two harnesses agree about the same items: raw agreement first, then what luck leaves of it."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from llm.errors import InputError
from reconcile.coefficients import Coefficient, cohen_kappa, pearson, spearman
from reconcile.ledger import ItemTable, Ledger

Point = tuple[float, float]

FEWEST_SUBJECTS = 3
"""Below this, sub-tasks are drawn at random from the items, as the notebook does."""


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """The common items by what became of them. `partial` holds those with a credit that is neither 0 nor 1;
    `wrong_unknown` those wrong on both sides where a side names no choice.
    """

    both_right: int = 0
    only_lm_eval: int = 0
    only_inspect: int = 0
    both_wrong_alike: int = 0
    both_wrong_differently: int = 0
    wrong_unknown: int = 0
    partial: int = 0


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Two runs over their common items.

    Picks are original indices; `num_picks` items name one on both sides. Correctness is credit 1 or not.
    `pearson` and `spearman` relate the two scores over sub-tasks; `points` are these by sub-task. `scatter` is the
    notebook's: random sub-tasks with length normalisation off and on, and `scatter_pearson` its correlations, each and
    pooled.
    """

    num_items: int
    outcomes: Outcomes
    num_picks: int
    picks_agree: Fraction | None
    correctness_agrees: Fraction
    kappa_picks: Coefficient
    kappa_correctness: Coefficient
    pearson: Coefficient
    spearman: Coefficient
    points: Mapping[str, Point]
    scatter: Mapping[str, tuple[Point, ...]]
    scatter_pearson: Mapping[str, Coefficient]


def agreement_of(ledger: Ledger, *, num_subtasks: int = 40, size: int = 5, seed: int = 1) -> Agreement:
    """How far the two sides of a ledger agree; `num_subtasks`, `size` and `seed` are for random sub-tasks."""
    table = ledger.items
    right_left = [credit == 1 for credit in table.logged_lm_eval]
    right_right = [credit == 1 for credit in table.logged_inspect]
    picks = [pair for pair in native_picks(ledger) if None not in pair]
    points = subtask_points(table, num_subtasks=num_subtasks, size=size, seed=seed)
    ours, theirs = zip(*points.values(), strict=True)
    scatter = normalisation_scatter(ledger, num_subtasks=num_subtasks, size=size, seed=seed)
    return Agreement(
        num_items=table.num_items,
        outcomes=outcomes(ledger),
        num_picks=len(picks),
        picks_agree=Fraction(sum(one == other for one, other in picks), len(picks)) if picks else None,
        correctness_agrees=Fraction(
            sum(one == other for one, other in zip(right_left, right_right, strict=True)), table.num_items
        ),
        kappa_picks=cohen_kappa([one for one, _ in picks], [other for _, other in picks]),
        kappa_correctness=cohen_kappa(right_left, right_right),
        pearson=pearson(ours, theirs),
        spearman=spearman(ours, theirs),
        points=points,
        scatter=scatter,
        scatter_pearson=scatter_correlations(scatter),
    )


def native_picks(ledger: Ledger) -> list[tuple[int | None, int | None]]:
    """Both sides' own picks, item by item: as logged, else as the side's own protocol picks them."""
    table = ledger.items
    columns = [table.picks.get(_native_cell(ledger, side)) for side in ("lm_eval", "inspect")]
    found = [[left.pick, right.pick] for left, right in table.pairs]
    for row, position in enumerate(table.replayed.tolist()):
        for side, column in enumerate(columns):
            if column is not None and found[position][side] is None and column[row] >= 0:
                found[position][side] = int(column[row])
    return [(ours, theirs) for ours, theirs in found]


def _native_cell(ledger: Ledger, side: str) -> str:
    """A side's own cell; where nothing is switched, both sides share one."""
    return next((cell.name for cell in ledger.cells if cell.native == side), ledger.cells[0].name)


def outcomes(ledger: Ledger) -> Outcomes:
    """Counts what became of each common item."""
    return Outcomes(**Counter(item_outcomes(ledger)))


def item_outcomes(ledger: Ledger) -> list[str]:
    """What became of each common item, by the name of its count in `Outcomes`."""
    table = ledger.items
    rows = zip(table.logged_lm_eval, table.logged_inspect, native_picks(ledger), strict=True)
    return [_outcome(ours, theirs, picks) for ours, theirs, picks in rows]


def _outcome(ours: Fraction, theirs: Fraction, picks: tuple[int | None, int | None]) -> str:
    if not {ours, theirs} <= {0, 1}:
        return "partial"
    if ours or theirs:
        return "both_right" if ours and theirs else "only_lm_eval" if ours else "only_inspect"
    if None in picks:
        return "wrong_unknown"
    return "both_wrong_alike" if picks[0] == picks[1] else "both_wrong_differently"


def subtask_points(table: ItemTable, *, num_subtasks: int, size: int, seed: int) -> dict[str, Point]:
    """Both scores of every sub-task; of random ones where the items belong to fewer than three."""
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for position, (left, _) in enumerate(table.pairs):
        rows[left.subject].append(position)
    ours = np.array([float(credit) for credit in table.logged_lm_eval])
    theirs = np.array([float(credit) for credit in table.logged_inspect])
    if len(rows) >= FEWEST_SUBJECTS:
        return {name: (float(ours[own].mean()), float(theirs[own].mean())) for name, own in rows.items()}
    size = min(size, table.num_items)
    scatter = subtask_scatter({"": (ours, theirs)}, num_subtasks=num_subtasks, size=size, seed=seed)[""]
    return {f"random {place + 1}": point for place, point in enumerate(scatter)}


def subtask_scatter(
    credits: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]], *, num_subtasks: int, size: int, seed: int
) -> dict[str, tuple[Point, ...]]:
    """The notebook's scatter: both harnesses' scores on random sub-tasks, under several rules at once.

    `credits` maps a name (normalisation off, on) to both sides' credits (N,), (N,); every name is scored on the same
    `num_subtasks` draws of `size` different items.
    """
    number = len(next(iter(credits.values()))[0])
    if not 1 <= size <= number:
        raise InputError(f"a random sub-task of {size} items cannot be drawn from {number}: choose 1 to {number}")
    rng = np.random.default_rng(seed)
    draws = [rng.choice(number, size=size, replace=False) for _ in range(num_subtasks)]
    return {
        name: tuple((float(ours[drawn].mean()), float(theirs[drawn].mean())) for drawn in draws)
        for name, (ours, theirs) in credits.items()
    }


def scatter_correlations(scatter: Mapping[str, Sequence[Point]]) -> dict[str, Coefficient]:
    """Pearson's r of each cloud of a scatter, and of all its points `pooled`, as the notebook's title has it."""
    clouds = {**scatter, "pooled": [point for cloud in scatter.values() for point in cloud]} if scatter else {}
    return {name: pearson([one for one, _ in cloud], [other for _, other in cloud]) for name, cloud in clouds.items()}


def normalisation_scatter(
    ledger: Ledger, *, num_subtasks: int = 40, size: int = 5, seed: int = 1
) -> dict[str, tuple[Point, ...]]:
    """The notebook's picture for a real ledger: normalisation off (each side's scores under lm-eval's rule) and on
    (under Inspect's), where the two rules differ; else the native scores alone.
    """
    table = ledger.items
    if not len(table.replayed):
        return {}
    cells = {frozenset(cell.switched): cell.name for cell in ledger.cells}
    pairs = {}
    for name, base in (("off", frozenset[str]()), ("on", frozenset({"length_normalisation"}))):
        ours, theirs = cells.get(base), cells.get(base | {"template"})
        if ours is not None and theirs is not None:
            pairs[name] = (_column(table, ours), _column(table, theirs))
    if not pairs:
        return {}
    return subtask_scatter(pairs, num_subtasks=num_subtasks, size=min(size, len(table.replayed)), seed=seed)


def _column(table: ItemTable, cell: str) -> NDArray[np.float64]:
    return np.asarray(table.credits[cell].astype(np.float64) / table.denominator)
