"""The gap between two runs, accounted for: matching, replay, lattice, coverage, and what is left unexplained."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from llm.errors import InputError
from reconcile import coverage
from reconcile.cells import READOUT, Grid, build_grid
from reconcile.components import (
    cell_columns,
    components_of,
    describe_cells,
    interactions_of,
    native_cells,
    singles_and_bound,
    split_by_origin,
)
from reconcile.flags import flags
from reconcile.lattice import Lattice
from reconcile.ledger import Bound, Cell, Component, Interaction, ItemTable, Ledger, Single
from reconcile.luck import tie_break_spread
from reconcile.matching import match
from reconcile.replay import Replay, Side, build_replay, build_side
from reconcile.reported import compare_reported
from reconcile.runs import HarnessRun
from reconcile.unexplained import account_for_rest, split_readout


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
    ends = compare_reported(lm_eval, left_cover.estimate, inspect, right_cover.estimate)
    components = (*parts, _coverage_component(lines), _rounding_component(ends.rounding), rest.component(ends.fault))
    assert sum((part.exact for part in components), Fraction(0)) == ends.gap, "the ledger does not close"

    between = _between(grid, replay, left, right)
    return Ledger(
        task=lm_eval.task,
        metric={"lm_eval": lm_eval.headline, "inspect": inspect.headline},
        reported={"lm_eval": float(ends.lm_eval), "inspect": float(ends.inspect)},
        reported_raw={"lm_eval": dict(lm_eval.reported), "inspect": dict(inspect.reported)},
        stderr={"lm_eval": lm_eval.stderr, "inspect": inspect.stderr},
        protocols={"lm_eval": lm_eval.protocol, "inspect": inspect.protocol},
        harnesses={"lm_eval": lm_eval.harness, "inspect": inspect.harness},
        logits_dtypes={"lm_eval": _logits_dtype(lm_eval), "inspect": _logits_dtype(inspect)},
        gap=ends.gap,
        components=components,
        coverage_lines=lines,
        common_scores={"lm_eval": left_cover.common, "inspect": right_cover.common},
        cells=between.cells,
        one_at_a_time=between.singles,
        interactions=between.interactions,
        bound=between.bound,
        closing_sets=between.closing_sets,
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
            picks=cell_columns(between.cells, grid.picks),
            credits=cell_columns(between.cells, grid.lattice.credits),
            denominator=grid.lattice.denominator,
            contributions=split_by_origin(grid, replay.origins),
            contribution_denominator=grid.lattice.contribution_denominator,
            choices={"lm_eval": replay.left.table, "inspect": replay.right.table},
            reasons=rest.reasons,
        ),
        notes=(*lm_eval.notes, *inspect.notes, *flags(left, right)),
        faults=ends.faults,
    )


@dataclass(frozen=True, kw_only=True)
class _Between:
    """What lies between the two protocols; where no item can be replayed there, only the native scores do."""

    cells: tuple[Cell, ...]
    singles: tuple[Single, ...] = ()
    interactions: tuple[Interaction, ...] = ()
    bound: Bound
    closing_sets: Mapping[str, tuple[tuple[str, ...], ...]]


def _between(grid: Grid, replay: Replay, left: Side, right: Side) -> _Between:
    if not len(replay.rows):
        return _Between(
            cells=native_cells(left, right),
            bound=Bound(gap=Fraction(0), sum_from_lm_eval=None, sum_from_inspect=None),
            closing_sets={"from_lm_eval": (), "from_inspect": ()},
        )
    singles, bound = singles_and_bound(grid.lattice)
    return _Between(
        cells=describe_cells(grid, replay.left, replay.right),
        singles=singles,
        interactions=interactions_of(grid.lattice),
        bound=bound,
        closing_sets={
            "from_lm_eval": grid.lattice.closing_sets(),
            "from_inspect": grid.lattice.closing_sets(from_inspect=True),
        },
    )


def _check(run: HarnessRun, loglikelihood: HarnessRun | None) -> None:
    if not run.samples:
        raise InputError(f"the {run.harness} run of {run.task!r} holds no items: give a finished run with its samples")
    if loglikelihood is not None and run.protocol.readout != "generate":
        raise InputError(
            f"the {run.harness} run already reads likelihoods, so a second likelihood run beside it has no use: "
            "leave it out"
        )


def _logits_dtype(run: HarnessRun) -> str | None:
    """As the log says it; a harness's own model leaves logits in the dtype of its weights."""
    return run.settings.get("logits_dtype") or run.settings.get("dtype")


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
