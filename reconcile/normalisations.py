"""All length rules and all tie rules side by side, on the likelihoods one side already has."""

from dataclasses import dataclass
from fractions import Fraction

from llm.evaluation import rules
from reconcile.choices import ChoiceTable, mark
from reconcile.runs import Protocol


@dataclass(frozen=True, kw_only=True)
class RuleScore:
    """What a rule scores over `num_items`; `score` is None where `reason` says that it cannot be applied."""

    rule: str
    score: Fraction | None
    num_items: int
    native: bool
    reason: str | None = None


def every_normalisation(table: ChoiceTable, protocol: Protocol) -> tuple[RuleScore, ...]:
    """The five normalisations under the protocol's own tie-break, each over the items that it can be applied to."""
    return tuple(_normalisation(table, protocol, rule) for rule in rules.NORMALISATIONS)


def _normalisation(table: ChoiceTable, protocol: Protocol, rule: rules.Normalisation) -> RuleScore:
    lost, reason = table.obstacle(rule)
    usable = table if not lost.any() else table.select(~lost)
    native = rule == protocol.normalisation
    if not usable.num_items:
        return RuleScore(rule=rule, score=None, num_items=0, native=native, reason=reason)
    return RuleScore(
        rule=rule,
        score=_score(usable, protocol, normalisation=rule, tie_break=protocol.tie_break),
        num_items=usable.num_items,
        native=native,
        reason=f"not for {int(lost.sum())} of {table.num_items} items: {reason}" if lost.any() else None,
    )


def every_tie_break(table: ChoiceTable, protocol: Protocol) -> tuple[RuleScore, ...]:
    """What each tie-break would give under the protocol's own normalisation (and seed, where it draws)."""
    return tuple(
        RuleScore(
            rule=rule,
            score=_score(table, protocol, normalisation=protocol.normalisation, tie_break=rule),
            num_items=table.num_items,
            native=rule == protocol.tie_break,
        )
        for rule in rules.TIE_BREAKS
    )


def _score(
    table: ChoiceTable, protocol: Protocol, *, normalisation: rules.Normalisation, tie_break: rules.TieBreak
) -> Fraction:
    marks = mark(
        table, normalisation=normalisation, tie_break=tie_break, seed=protocol.seed, tie_atol=protocol.tie_atol
    )
    return marks.mean()
