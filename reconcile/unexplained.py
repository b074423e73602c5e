"""What the rules do not derive from the logs, item by item, with what would be needed to explain it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from reconcile.cells import READOUT
from reconcile.ledger import Component, ReadoutSplit, UnexplainedItem
from reconcile.readout import count_named, is_unfound
from reconcile.replay import NOT_SEPARABLE, Replay, Side


@dataclass(frozen=True, kw_only=True)
class Remainder:
    """What components cannot hold. `items` are listed one by one, `shares` are their parts of the gap (one item's
    credit), `reasons` say why by position; `unfound` are the parts of items whose generated answer was not found,
    where the lattice could not place them.
    """

    items: tuple[UnexplainedItem, ...]
    shares: tuple[Fraction, ...]
    reasons: Mapping[int, str]
    unfound: tuple[Fraction, ...]
    num_common: int

    def component(self, fault: Fraction) -> Component:
        """The line `unexplained`; `fault` is what the runs' reported values differ by from their own credits."""
        up = [share for share in self.shares if share > 0]
        down = [share for share in self.shares if share < 0]
        gross_up, gross_down = (sum(part, Fraction(0)) / self.num_common for part in (up, down))
        nothing = not self.items and not fault
        return Component(
            name="unexplained",
            exact=gross_up + gross_down + fault,
            status="inert" if nothing else "acts",
            reason="every logged credit is the one the rules derive" if nothing else None,
            items_up=len(up),
            items_down=len(down),
            gross_up=gross_up,
            gross_down=gross_down,
        )

    def readout(self) -> Component | None:
        """The readout's line where only the unfound answers can be laid to it; None where the lattice has its own."""
        if not self.unfound:
            return None
        up, down = [s for s in self.unfound if s > 0], [s for s in self.unfound if s < 0]
        gross_up, gross_down = (sum(part, Fraction(0)) / self.num_common for part in (up, down))
        return Component(
            name=READOUT,
            exact=gross_up + gross_down,
            status="not separable",
            reason=f"only the answers that were not found are counted here: {NOT_SEPARABLE}",
            items_up=len(up),
            items_down=len(down),
            gross_up=gross_up,
            gross_down=gross_down,
        )


def account_for_rest(left: Side, right: Side, replay: Replay) -> Remainder:
    """Compares every logged credit with the derived one, and collects what the lattice does not cover."""
    items, shares, unfound = [], [], []
    reasons: dict[int, str] = {}
    for position in range(len(left.native)):
        share, reason = _unexplained_share(position, left, right, replay)
        if reason == "":
            continue
        if reason is None:
            unfound.append(share)
            continue
        items.append(_listed(position, left, right, reason))
        shares.append(share)
        reasons[position] = reason
    return Remainder(
        items=tuple(items),
        shares=tuple(shares),
        reasons=reasons,
        unfound=tuple(unfound),
        num_common=len(left.native),
    )


def _unexplained_share(position: int, left: Side, right: Side, replay: Replay) -> tuple[Fraction, str | None]:
    """An item's part outside the lattice, and the reason: "" for nothing to explain, None for an unfound answer."""
    obstacle = replay.obstacles.get(position)
    if obstacle is None and all(side.derived[position] == side.logged[position] for side in (left, right)):
        return Fraction(0), ""
    wrong = " and ".join(filter(None, (_disagreement(side, position) for side in (left, right))))
    logged = left.logged[position] - right.logged[position]
    if obstacle is None:
        derived = _known(left, position) - _known(right, position)
        return logged - derived, wrong
    if obstacle == NOT_SEPARABLE and not wrong and _is_unfound(left, right, position):
        return logged, None
    if wrong or logged:
        return logged, wrong or obstacle
    return logged, ""


def _known(side: Side, position: int) -> Fraction:
    credit = side.derived[position]
    assert credit is not None
    return credit


def _disagreement(side: Side, position: int) -> str:
    logged, derived = side.logged[position], side.derived[position]
    name = "lm-eval" if side.run.harness == "lm_eval" else "Inspect"
    if derived is None:
        return f"{name} logged {logged} and no choice scores to derive it from"
    if derived == logged:
        return ""
    protocol = side.run.protocol
    if side.generates:
        return f"{name} logged {logged}, its logged answer is worth {derived}"
    return (
        f"{name} logged {logged}, the rules give {derived} for its scores "
        f"({protocol.normalisation}, {protocol.tie_break})"
    )


def _is_unfound(left: Side, right: Side, position: int) -> bool:
    return any(side.generates and is_unfound(side.native[position]) for side in (left, right))


def _listed(position: int, left: Side, right: Side, reason: str) -> UnexplainedItem:
    sample = left.native[position]
    return UnexplainedItem(
        key=sample.key.digest,
        occurrence=sample.key.occurrence,
        subject=sample.subject,
        side=_guilty(position, left, right),
        logged_lm_eval=left.logged[position],
        logged_inspect=right.logged[position],
        derived_lm_eval=left.derived[position],
        derived_inspect=right.derived[position],
        reason=reason,
    )


def _guilty(position: int, left: Side, right: Side) -> Literal["lm_eval", "inspect", "both"]:
    one, other = (side.derived[position] != side.logged[position] for side in (left, right))
    if one == other:
        return "both"
    return "lm_eval" if one else "inspect"


def split_readout(
    left: Side, right: Side, *, positions: Sequence[int], shares: Sequence[Fraction], rest: Remainder
) -> ReadoutSplit | None:
    """The readout's component parted by what was generated; None where both sides read alike.

    `shares` are the readout's parts of the items at `positions`, in one item's credit.
    """
    if left.generates == right.generates:
        return None
    generating = left if left.generates else right
    unfound, another = sum(rest.unfound, Fraction(0)), Fraction(0)
    for position, share in zip(positions, shares, strict=True):
        if is_unfound(generating.native[position]):
            unfound += share
        else:
            another += share
    num_unfound, num_named, num_right = count_named(generating.native)
    return ReadoutSplit(
        no_answer_found=unfound / rest.num_common,
        another_answer=another / rest.num_common,
        num_unfound=num_unfound,
        num_named=num_named,
        num_named_right=num_right,
    )
