"""The gap between two runs, accounted for: matching, replay, lattice, coverage, and what is left unexplained."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from llm.errors import InputError
from reconcile import coverage
from reconcile.cells import READOUT, build_grid
from reconcile.components import (
    cell_columns,
    components_of,
    describe_cells,
    interactions_of,
    native_cells,
    singles_and_bound,
    split_by_origin,
)
from reconcile.lattice import Lattice
from reconcile.ledger import Component, ItemTable, Ledger
from reconcile.luck import tie_break_spread
from reconcile.matching import match
from reconcile.replay import build_replay, build_side
from reconcile.runs import HarnessRun
from reconcile.unexplained import account_for_rest, split_readout

ROUNDING_LIMIT = Fraction(1, 10**12)
"""Beyond this a reported value and its replay differ by more than float addition can explain."""


def decompose(
    lm_eval: HarnessRun,
    inspect: HarnessRun,
    *,
    inspect_loglikelihood: HarnessRun | None = None,
    lm_eval_loglikelihood: HarnessRun | None = None,
) -> Ledger:
    """The ledger of two multiple-choice runs; every number in it is lm-eval minus Inspect.

    Each run carries the choice scores under its own template. Where a run generates its answers, the matching
    `…_loglikelihood` run of the same items under the same template lets the wording and the readout be told apart;
    without it their joint effect is named and left unexplained, but for the answers that were not found.

    Raises:
        InputError: a run holds no items, the two share none, or a `…_loglikelihood` run comes with a run that already
            reads likelihoods.
    """
    _check(lm_eval, lm_eval_loglikelihood)
    _check(inspect, inspect_loglikelihood)
    matching = match(lm_eval, inspect)
    if not matching.common:
        raise InputError(
            f"the two runs of {lm_eval.task!r} share no scored item ({len(lm_eval.samples)} and {len(inspect.samples)} "
            "items given): compare runs over the same data"
        )
    left = build_side(lm_eval, [pair[0] for pair in matching.common], lm_eval_loglikelihood)
    right = build_side(inspect, [pair[1] for pair in matching.common], inspect_loglikelihood)
    left_cover = coverage.side_coverage(lm_eval, left.logged, matching.lm_eval, "only_lm_eval")
    right_cover = coverage.side_coverage(inspect, right.logged, matching.inspect, "only_inspect")

    replay = build_replay(left, right)
    grid = build_grid(replay.left, replay.right, source=replay.source)
    num_common = len(matching.common)
    rest = account_for_rest(left, right, replay)
    parts = components_of(grid, replay.left, replay.right, origins=replay.origins, num_common=num_common)
    unplaced = rest.readout()
    if unplaced is not None:
        parts = (*(part for part in parts if part.name != READOUT), unplaced)
    lines = coverage.difference(left_cover, right_cover)
    ends = _ends(lm_eval, left_cover.estimate, inspect, right_cover.estimate)
    components = (*parts, _coverage_component(lines), _rounding_component(ends.rounding), rest.component(ends.fault))
    assert sum((part.exact for part in components), Fraction(0)) == ends.gap, "the ledger does not close"

    in_between = bool(len(replay.rows))
    cells = describe_cells(grid, replay.left, replay.right) if in_between else native_cells(left, right)
    singles, bound = singles_and_bound(grid.lattice)
    return Ledger(
        task=lm_eval.task,
        metric={"lm_eval": lm_eval.headline, "inspect": inspect.headline},
        reported={"lm_eval": float(ends.lm_eval), "inspect": float(ends.inspect)},
        reported_raw={"lm_eval": dict(lm_eval.reported), "inspect": dict(inspect.reported)},
        stderr={"lm_eval": lm_eval.stderr, "inspect": inspect.stderr},
        protocols={"lm_eval": lm_eval.protocol, "inspect": inspect.protocol},
        harnesses={"lm_eval": lm_eval.harness, "inspect": inspect.harness},
        gap=ends.gap,
        components=components,
        coverage_lines=lines,
        common_scores={"lm_eval": left_cover.common, "inspect": right_cover.common},
        cells=cells,
        one_at_a_time=singles if in_between else (),
        interactions=interactions_of(grid.lattice) if in_between else (),
        bound=bound,
        closing_sets={
            "from_lm_eval": grid.lattice.closing_sets() if in_between else (),
            "from_inspect": grid.lattice.closing_sets(from_inspect=True) if in_between else (),
        },
        readout_split=split_readout(
            left, right, positions=replay.rows.tolist(), shares=_readout_shares(grid.lattice), rest=rest
        ),
        tie_break_spread=tie_break_spread(grid, replay.left, replay.right, num_common=num_common),
        num_items={**coverage.counts(matching), "replayed": len(replay.rows)},
        unexplained=rest.items,
        items=ItemTable(
            pairs=matching.common,
            logged_lm_eval=left.logged,
            logged_inspect=right.logged,
            replayed=replay.rows,
            picks=cell_columns(cells, grid.picks),
            credits=cell_columns(cells, grid.lattice.credits),
            denominator=grid.lattice.denominator,
            contributions=split_by_origin(grid, replay.origins),
            contribution_denominator=grid.lattice.contribution_denominator,
            choices={"lm_eval": replay.left.table, "inspect": replay.right.table},
            reasons=rest.reasons,
        ),
        notes=(*lm_eval.notes, *inspect.notes),
        faults=ends.faults,
    )


def _check(run: HarnessRun, loglikelihood: HarnessRun | None) -> None:
    if not run.samples:
        raise InputError(f"the {run.harness} run of {run.task!r} holds no items: give a finished run with its samples")
    if loglikelihood is not None and run.protocol.readout != "generate":
        raise InputError(
            f"the {run.harness} run already reads likelihoods, so a second likelihood run beside it has no use: "
            "leave it out"
        )


@dataclass(frozen=True, kw_only=True)
class _Ends:
    """The two reported values as exact numbers, and how they differ from what their logged credits give."""

    lm_eval: Fraction
    inspect: Fraction
    rounding: Fraction
    fault: Fraction
    faults: tuple[str, ...]

    @property
    def gap(self) -> Fraction:
        return self.lm_eval - self.inspect


def _ends(lm_eval: HarnessRun, ours: Fraction, inspect: HarnessRun, theirs: Fraction) -> _Ends:
    rounding, fault, faults, values = Fraction(0), Fraction(0), [], []
    for run, replayed, sign in ((lm_eval, ours, 1), (inspect, theirs, -1)):
        value = _reported(run, replayed)
        values.append(value)
        if abs(value - replayed) <= ROUNDING_LIMIT:
            rounding += sign * (value - replayed)
        else:
            fault += sign * (value - replayed)
            faults.append(
                f"{run.harness} reports {run.headline} = {float(value)!r}, its logged credits give {float(replayed)!r} "
                f"({run.averaging} average)"
            )
    return _Ends(lm_eval=values[0], inspect=values[1], rounding=rounding, fault=fault, faults=tuple(faults))


def _reported(run: HarnessRun, replayed: Fraction) -> Fraction:
    value = run.reported.get(run.headline)
    if value is None:
        return replayed
    if not math.isfinite(value):
        raise InputError(
            f"the {run.harness} run reports {run.headline} = {value!r}, which is no score: "
            "give a run that finished with a number"
        )
    return Fraction(value)


def _coverage_component(lines: Mapping[str, Fraction]) -> Component:
    total = sum(lines.values(), Fraction(0))
    if any(lines.values()):
        return Component(name="coverage", exact=total)
    return Component(
        name="coverage", exact=total, status="inert", reason="both estimates average the same items in the same way"
    )


def _rounding_component(rounding: Fraction) -> Component:
    return Component(name="rounding", exact=rounding, status="acts" if rounding else "inert")


def _readout_shares(lattice: Lattice) -> list[Fraction]:
    shares = lattice.contributions.get(READOUT)
    if shares is None:
        return [Fraction(0)] * lattice.num_items
    return [Fraction(int(share), lattice.contribution_denominator) for share in shares]
