"""From two runs' samples to the lattice of protocols between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llm.evaluation import rules
from reconcile.choices import ChoiceTable, Marks, mark
from reconcile.lattice import Factor, Lattice, Switched, build_lattice, feasible_cells
from reconcile.runs import Protocol, SampleRecord

NORMALISATION, TIE_BREAK, READOUT = "length_normalisation", "tie_break", "readout"


@dataclass(frozen=True, kw_only=True)
class SideData:
    """What one side brings for the M replayed items: choice scores under its template, and what it generated.

    `table` is None where it has no choice scores; `generated` is None where it reads likelihoods. Its random ties
    draw by `keys` (M,), the digests under which it knows the items.
    """

    protocol: Protocol
    keys: tuple[str, ...]
    table: ChoiceTable | None
    generated: Marks | None


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The lattice with each cell's picks; `source` is the name of the factor that switches the scores,
    None where both sides bring the same."""

    lattice: Lattice
    picks: Mapping[Switched, NDArray[np.int64]]
    marks: Mapping[Switched, Marks]
    source: str | None


def generated_marks(samples: Sequence[SampleRecord]) -> Marks:
    """Credits of generated answers: right if the choice found is the gold, wrong if none was found."""
    picks = np.array([-1 if sample.pick is None else sample.pick for sample in samples], dtype=np.int64)
    gold = np.array([sample.gold for sample in samples], dtype=np.int64)
    return Marks(picks=picks, above=(picks == gold).astype(np.int64), below=np.ones(len(samples), dtype=np.int64))


def build_grid(lm_eval: SideData, inspect: SideData, *, source: str | None) -> Grid:
    """Every feasible cell between two protocols.

    Factors that do not differ are left out: switching them changes nothing. A generated readout is switched at the
    template of the side that generates, so it comes after (Inspect's) or before (lm-eval's) the template.
    """
    factors = _factors(lm_eval, inspect, source)
    cache: dict[tuple[object, ...], Marks] = {}
    marks = {
        cell: _cell_marks(cell, lm_eval=lm_eval, inspect=inspect, source=source, cache=cache)
        for cell in feasible_cells(factors)
    }
    lattice = build_lattice(factors, {cell: (found.above, found.below) for cell, found in marks.items()})
    return Grid(lattice=lattice, picks={cell: found.picks for cell, found in marks.items()}, marks=marks, source=source)


def _factors(lm_eval: SideData, inspect: SideData, source: str | None) -> tuple[Factor, ...]:
    left_generates, right_generates = lm_eval.generated is not None, inspect.generated is not None
    if left_generates and right_generates:
        return () if source is None else (Factor(name=source),)
    factors = [] if source is None else [Factor(name=source, after=READOUT if left_generates else None)]
    if lm_eval.protocol.normalisation != inspect.protocol.normalisation:
        factors.append(Factor(name=NORMALISATION))
    if tie_rule(lm_eval.protocol) != tie_rule(inspect.protocol):
        factors.append(Factor(name=TIE_BREAK))
    if left_generates or right_generates:
        factors.append(Factor(name=READOUT, after=source if right_generates else None))
    return tuple(factors)


def tie_rule(protocol: Protocol) -> tuple[rules.TieBreak, int, float]:
    """All that decides a tie: the rule, its seed where it draws, and how close scores count as equal."""
    return protocol.tie_break, protocol.seed if protocol.tie_break == "random" else 0, protocol.tie_atol


def reads_generation(cell: Switched, *, lm_eval: SideData, inspect: SideData) -> bool:
    """Whether a cell takes its answers from generated text."""
    if lm_eval.generated is not None and inspect.generated is not None:
        return True
    return READOUT in cell if inspect.generated is not None else lm_eval.generated is not None and READOUT not in cell


def _cell_marks(
    cell: Switched, *, lm_eval: SideData, inspect: SideData, source: str | None, cache: dict[tuple[object, ...], Marks]
) -> Marks:
    side = inspect if source in cell else lm_eval
    if reads_generation(cell, lm_eval=lm_eval, inspect=inspect):
        assert side.generated is not None
        return side.generated
    normalisation = (inspect if NORMALISATION in cell else lm_eval).protocol.normalisation
    ruler = inspect if TIE_BREAK in cell else lm_eval
    tie_break, seed, tie_atol = tie_rule(ruler.protocol)
    key = (source in cell, normalisation, TIE_BREAK in cell)
    if key not in cache:
        assert side.table is not None
        cache[key] = mark(
            side.table,
            normalisation=normalisation,
            tie_break=tie_break,
            seed=seed,
            tie_atol=tie_atol,
            keys=ruler.keys,
        )
    return cache[key]
