"""The lattice's results as the ledger prints them: components net and gross, cells, singles, interactions."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from reconcile.cells import NORMALISATION, READOUT, TIE_BREAK, Grid, SideData, reads_generation, tie_rule
from reconcile.choices import ChoiceTable
from reconcile.exact import mean
from reconcile.lattice import Integers, Lattice, Switched
from reconcile.ledger import Bound, Cell, Component, ComponentStatus, Interaction, SideName, Single
from reconcile.origins import ORIGINS, Origin
from reconcile.replay import Side

_SIDES: tuple[SideName, SideName] = ("lm_eval", "inspect")
_NOTHING_REPLAYED = "no common item carries what every protocol in between needs"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a factor can act here, and if not, why."""

    status: ComponentStatus
    reason: str | None = None


def components_of(
    grid: Grid, left: SideData, right: SideData, *, origins: tuple[Origin, ...], num_common: int
) -> tuple[Component, ...]:
    """One component for each factor; the source of the scores is parted item by item into its origins."""
    contributions = split_by_origin(grid, origins)
    verdicts = {
        "template": _template_verdict(origins),
        NORMALISATION: _normalisation_verdict(left, right, contributions.get(NORMALISATION)),
        TIE_BREAK: _tie_verdict(grid, left, right),
    }
    changed = {name: _picks_changed(grid, name) for name in grid.lattice.names}
    parts = []
    for name in ("template", "tokenisation", "engine", NORMALISATION, TIE_BREAK, READOUT):
        if name not in contributions and name not in verdicts:
            continue
        factor = grid.source if name in ORIGINS else name
        picked = None if factor is None else changed.get(factor)
        if picked is not None and name in ORIGINS:
            picked = picked & (np.array(origins, dtype=object) == name)
        parts.append(
            _component(
                name,
                contributions.get(name),
                denominator=grid.lattice.contribution_denominator * num_common,
                verdict=verdicts.get(name, Verdict(status="acts")),
                picks_changed=0 if picked is None else int(picked.sum()),
            )
        )
    return tuple(parts)


def split_by_origin(grid: Grid, origins: tuple[Origin, ...]) -> dict[str, Integers]:
    """Contributions (M,) by component name: the source factor's, shared out by each item's origin."""
    contributions = dict(grid.lattice.contributions)
    if grid.source is None:
        return contributions
    source = contributions.pop(grid.source)
    owner = np.array(origins, dtype=object)
    found: dict[str, Integers] = {name: np.where(owner == name, source, 0) for name in ORIGINS if name in origins}
    return {**found, **contributions}


def _component(
    name: str, numerators: Integers | None, *, denominator: int, verdict: Verdict, picks_changed: int
) -> Component:
    if numerators is None or not len(numerators):
        return Component(name=name, exact=Fraction(0), status=verdict.status, reason=verdict.reason)
    up, down = numerators > 0, numerators < 0
    gross_up = Fraction(int(numerators[up].sum()), denominator)
    gross_down = Fraction(int(numerators[down].sum()), denominator)
    return Component(
        name=name,
        exact=gross_up + gross_down,
        status=verdict.status,
        reason=verdict.reason,
        items_up=int(up.sum()),
        items_down=int(down.sum()),
        gross_up=gross_up,
        gross_down=gross_down,
        picks_changed=picks_changed,
    )


def _picks_changed(grid: Grid, name: str) -> NDArray[np.bool_]:
    changed = np.zeros(grid.lattice.num_items, dtype=bool)
    for before, after in grid.lattice.edges(name):
        one, other = grid.picks[before], grid.picks[after]
        changed |= (one != other) & (one >= 0) & (other >= 0)
    return changed


def _template_verdict(origins: tuple[Origin, ...]) -> Verdict:
    if not origins:
        return Verdict(status="not separable", reason=_NOTHING_REPLAYED)
    if "template" in origins:
        return Verdict(status="acts")
    return Verdict(status="inert", reason="both sides score the same text")


def _normalisation_verdict(left: SideData, right: SideData, contributions: Integers | None) -> Verdict:
    ours, theirs = left.protocol.normalisation, right.protocol.normalisation
    if left.table is None or right.table is None:
        return Verdict(status="inert", reason="answers are generated on both sides: there are no scores to normalise")
    if ours == theirs:
        return Verdict(status="inert", reason=f"both sides use {ours!r}")
    if not left.table.num_items:
        return Verdict(status="not separable", reason=_NOTHING_REPLAYED)
    tables = (left.table, right.table)
    blocked = all(table.has_equal_lengths(rule).all() for table in tables for rule in (ours, theirs))
    if blocked and contributions is not None and not contributions.any():
        return Verdict(status="inert", reason=_equal_lengths_reason(tables))
    return Verdict(status="acts")


def _equal_lengths_reason(tables: Iterable[ChoiceTable]) -> str:
    if all((table.num_tokens[table.valid] == 1).all() for table in tables):
        return "every choice is one token long, so no length rule can reorder them"
    return "within every item all choices have one length, so no length rule can reorder them"


def _tie_verdict(grid: Grid, left: SideData, right: SideData) -> Verdict:
    if left.table is None or right.table is None:
        return Verdict(status="inert", reason="answers are generated on both sides: there are no scores to tie")
    if tie_rule(left.protocol) == tie_rule(right.protocol):
        return Verdict(status="inert", reason=f"both sides use {left.protocol.tie_break!r}")
    if not left.table.num_items:
        return Verdict(status="not separable", reason=_NOTHING_REPLAYED)
    sides = (left.protocol, right.protocol)
    ties = any(
        (table.tied(protocol.normalisation, atol).sum(axis=1) > 1).any()
        for table in (left.table, right.table)
        for protocol in sides
        for atol in {side.tie_atol for side in sides}
    )
    return Verdict(status="acts") if ties else Verdict(status="inert", reason="no two choices tie for best anywhere")


def native_cells(left: Side, right: Side) -> tuple[Cell, ...]:
    """The two native protocols alone, where no item can be replayed in between: scores as the rules derive them."""
    cells = []
    for name, side in zip(_SIDES, (left, right), strict=True):
        protocol = side.run.protocol
        credits = [credit for credit in side.derived if credit is not None]
        cells.append(
            Cell(
                switched=() if name == "lm_eval" else ("template", READOUT),
                template=protocol.template,
                scores=name,
                normalisation=None if side.generates else protocol.normalisation,
                tie_break=None if side.generates else protocol.tie_break,
                readout=protocol.readout,
                exact=mean(credits),
                num_items=len(credits),
                native=name,
            )
        )
    return tuple(cells)


def describe_cells(grid: Grid, left: SideData, right: SideData) -> tuple[Cell, ...]:
    """Every distinct protocol of the lattice and its score; under a generated readout the rules are None, and cells
    that differ in nothing else are one.
    """
    cells: dict[tuple[object, ...], Cell] = {}
    for switched in grid.lattice.credits:
        cell = _describe(switched, grid, left, right)
        cells.setdefault((cell.scores, cell.normalisation, cell.tie_break, cell.readout), cell)
    return tuple(cells.values())


def _describe(switched: Switched, grid: Grid, left: SideData, right: SideData) -> Cell:
    generated = reads_generation(switched, lm_eval=left, inspect=right)
    scores: SideName = "inspect" if grid.source in switched else "lm_eval"
    native = _native_end(switched, grid, left, right, generated=generated)
    return Cell(
        switched=tuple(name for name in grid.lattice.names if name in switched),
        template=(right if scores == "inspect" else left).protocol.template,
        scores=scores,
        normalisation=None if generated else (right if NORMALISATION in switched else left).protocol.normalisation,
        tie_break=None if generated else (right if TIE_BREAK in switched else left).protocol.tie_break,
        readout="generate" if generated else "loglikelihood",
        exact=grid.lattice.score(switched),
        num_items=grid.lattice.num_items,
        native=native,
    )


def _native_end(switched: Switched, grid: Grid, left: SideData, right: SideData, *, generated: bool) -> SideName | None:
    if not switched or (generated and left.generated is not None and grid.source not in switched):
        return "lm_eval"
    if switched == grid.lattice.all_switched or (generated and right.generated is not None):
        return "inspect"
    return None


def singles_and_bound(lattice: Lattice) -> tuple[tuple[Single, ...], Bound]:
    """The one-at-a-time gaps from both ends, and whether their sizes add up to at least the gap."""
    singles = tuple(
        Single(
            factor=name,
            from_lm_eval=lattice.single_from_lm_eval(name),
            from_inspect=lattice.single_from_inspect(name),
        )
        for name in lattice.names
    )
    gap = lattice.score(frozenset()) - lattice.score(lattice.all_switched)
    return singles, Bound(
        gap=gap,
        sum_from_lm_eval=_sum_of_sizes(single.from_lm_eval for single in singles),
        sum_from_inspect=_sum_of_sizes(single.from_inspect for single in singles),
    )


def _sum_of_sizes(gaps: Iterable[Fraction | None]) -> Fraction | None:
    total = Fraction(0)
    for gap in gaps:
        if gap is None:
            return None
        total += abs(gap)
    return total


def interactions_of(lattice: Lattice) -> tuple[Interaction, ...]:
    """The interactions of every set of two or more factors, from both ends."""
    return tuple(
        Interaction(
            factors=names,
            from_lm_eval=lattice.alternating(names, frozenset()),
            from_inspect=lattice.alternating(names, lattice.all_switched - set(names)),
        )
        for size in range(2, len(lattice.names) + 1)
        for names in itertools.combinations(lattice.names, size)
    )


def cell_columns(cells: Iterable[Cell], source: Mapping[Switched, NDArray]) -> dict[str, NDArray]:
    """A per-item column for each cell that items were replayed in."""
    return {cell.name: source[key] for cell in cells if (key := frozenset(cell.switched)) in source}
