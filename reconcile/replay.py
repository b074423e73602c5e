"""Two runs over their common items, made ready for the lattice: which can be replayed, and why the others cannot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from reconcile.cells import SideData, generated_marks
from reconcile.choices import ChoiceTable, build_table, has_scores, mark_natively
from reconcile.coverage import logged_credit
from reconcile.matching import match
from reconcile.origins import Origin, defines_same_text, origin
from reconcile.runs import HarnessRun, Protocol, SampleRecord

NO_SCORES = "no score of every choice is logged"
NOT_SEPARABLE = (
    "only one side generates its answers: telling the wording from the readout needs the choices' likelihoods under "
    "that side's own template"
)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One run over the N common items: its own records and the credits it logged.

    `scored` (N,) are the records that hold its choice scores, `table` those that exist, `table_rows` (N,) where in the
    table an item stands (-1: nowhere). `derived` (N,) are the credits that the rules give at the native protocol, None
    where the log does not tell.
    """

    run: HarnessRun
    native: tuple[SampleRecord, ...]
    logged: tuple[Fraction, ...]
    scored: tuple[SampleRecord | None, ...]
    table: ChoiceTable
    table_rows: NDArray[np.int64]
    derived: tuple[Fraction | None, ...]

    @property
    def generates(self) -> bool:
        return self.run.protocol.readout == "generate"


@dataclass(frozen=True, kw_only=True)
class Replay:
    """`rows` (M,) are the positions of the items that every cell can be computed for, `obstacles` say why the others
    cannot; `left` and `right` hold the M items' data, `origins` (M,) what a difference of their scores is owed to.
    """

    rows: NDArray[np.int64]
    obstacles: Mapping[int, str]
    left: SideData
    right: SideData
    origins: tuple[Origin, ...]

    @property
    def source(self) -> str | None:
        """The name of the factor that switches the scores; None where both sides bring the same text and numbers."""
        if "template" in self.origins or not self.origins:
            return "template"
        if self._same_numbers:
            return None
        return "tokenisation" if "tokenisation" in self.origins else "engine"

    @property
    def _same_numbers(self) -> bool:
        one, other = self.left.table, self.right.table
        if one is None or other is None or self.left.generated is not None or self.right.generated is not None:
            return False
        columns = ["logprobs", "num_chars", "num_bytes", "num_tokens"]
        if "pmi" in (self.left.protocol.normalisation, self.right.protocol.normalisation):
            columns.append("unconditional")
        return all(np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True) for name in columns)


def build_side(run: HarnessRun, native: Sequence[SampleRecord], loglikelihood: HarnessRun | None) -> Side:
    """One run's common items; `loglikelihood` is the run that holds the choice scores of a generating one."""
    scored = _scored_samples(run, native, loglikelihood)
    table = build_table([sample for sample in scored if sample is not None])
    has_row = np.array([sample is not None for sample in scored], dtype=bool)
    table_rows = np.where(has_row, np.cumsum(has_row) - 1, -1)
    return Side(
        run=run,
        native=tuple(native),
        logged=tuple(logged_credit(sample) for sample in native),
        scored=scored,
        table=table,
        table_rows=table_rows,
        derived=_derive(run.protocol, native, table, table_rows),
    )


def _scored_samples(
    run: HarnessRun, native: Sequence[SampleRecord], loglikelihood: HarnessRun | None
) -> tuple[SampleRecord | None, ...]:
    if run.protocol.readout == "loglikelihood":
        candidates: list[SampleRecord | None] = list(native)
    elif loglikelihood is None:
        candidates = [None] * len(native)
    else:
        partners = {id(own): scores for own, scores in match(run, loglikelihood).common}
        candidates = [partners.get(id(sample)) for sample in native]
    return tuple(sample if sample is not None and has_scores(sample) else None for sample in candidates)


def _derive(
    protocol: Protocol, native: Sequence[SampleRecord], table: ChoiceTable, table_rows: NDArray[np.int64]
) -> tuple[Fraction | None, ...]:
    if protocol.readout == "generate":
        return tuple(generated_marks(native).fractions())
    obstructed, _ = table.obstacle(protocol.normalisation)
    credits = mark_natively(table, protocol).fractions()
    return tuple(None if row < 0 or obstructed[row] else credits[row] for row in table_rows.tolist())


def build_replay(left: Side, right: Side) -> Replay:
    """Finds the items that all cells between the two protocols can be computed for."""
    if left.generates and right.generates:
        return _replay_rows(left, right, np.arange(len(left.native)), {})
    obstacles = {position: reason for position, reason in _missing_scores(left, right) if reason}
    for side in (left, right):
        for rule in {left.run.protocol.normalisation, right.run.protocol.normalisation}:
            lost, reason = side.table.obstacle(rule)
            if lost.any():
                hit = np.flatnonzero(lost[side.table_rows] & (side.table_rows >= 0)).tolist()
                obstacles.update({position: reason for position in hit if position not in obstacles})
    kept = np.array([position for position in range(len(left.native)) if position not in obstacles], dtype=np.int64)
    return _replay_rows(left, right, kept, obstacles)


def _missing_scores(left: Side, right: Side) -> list[tuple[int, str]]:
    separable = [side.generates and not any(side.scored) for side in (left, right)]
    reason = NOT_SEPARABLE if any(separable) else NO_SCORES
    return [
        (position, "" if one is not None and other is not None else reason)
        for position, (one, other) in enumerate(zip(left.scored, right.scored, strict=True))
    ]


def _replay_rows(left: Side, right: Side, rows: NDArray[np.int64], obstacles: Mapping[int, str]) -> Replay:
    same_template = defines_same_text(left.run.protocol, right.run.protocol)
    both_generate = left.generates and right.generates
    ours, theirs = (side.native if both_generate else side.scored for side in (left, right))
    origins: list[Origin] = []
    for position in rows.tolist():
        one, other = ours[position], theirs[position]
        assert one is not None
        assert other is not None
        origins.append(origin(one, other, same_template=same_template))
    return Replay(
        rows=rows,
        obstacles=obstacles,
        left=_side_data(left, rows, with_table=not both_generate),
        right=_side_data(right, rows, with_table=not both_generate),
        origins=tuple(origins),
    )


def _side_data(side: Side, rows: NDArray[np.int64], *, with_table: bool) -> SideData:
    natives = [side.native[position] for position in rows.tolist()]
    return SideData(
        protocol=side.run.protocol,
        keys=tuple(sample.key.digest for sample in natives),
        table=side.table.select(side.table_rows[rows]) if with_table else None,
        generated=generated_marks(natives) if side.generates else None,
    )
