"""What stands around the gap: chance above it; intervals, ties, rules, sub-tasks and agreement below it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from reconcile.ledger import Ledger
from reconcile.report.names import side_names
from reconcile.report.numbers import NO_VALUE, count, difference, interval, p_value, percent, score
from reconcile.report.sections import Section, Table

if TYPE_CHECKING:
    from reconcile.agreement import Agreement
    from reconcile.chance import Chance
    from reconcile.coefficients import Coefficient
    from reconcile.normalisations import RuleScore
    from reconcile.statistics import Statistics
    from reconcile.ties import TieCensus

_MOST_SUBJECTS = 57
_SCATTER = {
    "off": "Pearson's r over random sub-tasks, length normalisation off",
    "on": "the same, length normalisation on",
    "pooled": "both pooled",
}


def statistics_sections(ledger: Ledger, statistics: "Statistics") -> Mapping[str, tuple[Section, ...]]:
    """Sections that belong `above` the gap and `below` it."""
    names = side_names(ledger.harnesses)
    return {
        "above": (chance_section(statistics, names),),
        "below": (
            estimates_section(statistics, names),
            ties_section(ledger, statistics, names),
            normalisations_section(statistics, names),
            subjects_section(statistics, names),
        ),
    }


def chance_section(statistics: "Statistics", names: Mapping[str, str]) -> Section:
    """Is either score above guessing, and where do the picks fall?"""
    rows = tuple(_chance_row(name, statistics.chance[side]) for side, name in names.items())  # type: ignore[index]
    table = Table(
        headers=("", "score", "chance", "p (guessing)", "picks by position", "gold by position", "mass on the choices"),
        align="lrrrlll",
        rows=rows,
        spare=("gold by position", "mass on the choices"),
    )
    lost = [
        f"{name}'s score is not distinguishable from chance here."
        for side, name in names.items()
        if not statistics.chance[side].distinguishable()  # type: ignore[index]
    ]
    return Section(title="Chance", table=table, after=tuple(lost), brief=True)


def _chance_row(name: str, chance: "Chance") -> tuple[str, ...]:
    return (
        name,
        score(chance.score),
        score(chance.level),
        p_value(chance.test.p_value),
        " ".join(map(str, chance.picks)) + (f" (none: {chance.no_pick})" if chance.no_pick else ""),
        " ".join(map(str, chance.gold)),
        NO_VALUE if chance.probability_mass is None else percent(chance.probability_mass),
    )


def estimates_section(statistics: "Statistics", names: Mapping[str, str]) -> Section:
    """Intervals and tests: for other items like these, which the gap itself does not need."""
    named = {f"score of {name}": statistics.scores[side] for side, name in names.items()}  # type: ignore[index]
    estimates = {**named, "gap": statistics.gap, **{n.replace("_", " "): e for n, e in statistics.components.items()}}
    rows = tuple(
        (
            name,
            score(estimate.value) if name.startswith("score") else difference(estimate.value),
            interval(estimate.interval) if estimate.interval else NO_VALUE,
            estimate.interval.method if estimate.interval else "",
            interval(estimate.clustered),
            p_value(estimate.test.p_value) if estimate.test else "",
            p_value(estimate.test.adjusted) if estimate.test and estimate.test.adjusted is not None else "",
            estimate.test.method if estimate.test else "",
        )
        for name, estimate in estimates.items()
    )
    table = Table(
        headers=("", "value", "95 % interval", "found by", "redrawing subjects", "p", "Holm", "test"),
        align="lrllrrrl",
        rows=rows,
    )
    sentence = (
        "On these items the gap is exact. The intervals are for other items like these: "
        f"{count(statistics.num_questions, 'question')} in {count(statistics.num_subjects, 'subject')}, "
        f"{statistics.num_resamples} paired resamples, seed {statistics.seed}."
    )
    return Section(title="Uncertainty", sentences=(sentence,), table=table)


def ties_section(ledger: Ledger, statistics: "Statistics", names: Mapping[str, str]) -> Section:
    """How many items tie for best, why, and what every tie rule makes of them."""
    found = {name: statistics.ties[side] for side, name in names.items()}  # type: ignore[index]
    rows = tuple(_tie_row(name, ties) for name, ties in found.items() if ties is not None)
    if not rows:
        return Section(title="Ties")
    table = Table(
        headers=("", "items that tie", "of which kind", "first", "last", "random", "fractional", "any", "none"),
        align="lrlrrrrrr",
        rows=rows,
    )
    after: tuple[str, ...] = ()
    spread = ledger.tie_break_spread
    if spread is not None:
        after = (
            f"The tie-break component over all seeds: expectation {difference(spread.expectation)}, "
            f"standard deviation {spread.deviation:.4f}; realised {difference(ledger.component('tie_break').exact)}.",
        )
    return Section(title="Ties", table=table, after=after, brief=any(row[1] != "0" for row in rows))


def _tie_row(name: str, ties: "TieCensus") -> tuple[str, ...]:
    kinds = ", ".join(f"{number} {kind}" for kind, number in ties.kinds.items() if number)
    rules = {rule.rule: rule.score for rule in ties.rules}
    columns = ("first", "last", "random", "fractional", "any", "none")
    return (name, str(len(ties.items)), kinds, *(score(rules.get(column)) for column in columns))


def normalisations_section(statistics: "Statistics", names: Mapping[str, str]) -> Section:
    """The five length rules side by side on either side's own likelihoods."""
    rows = tuple(
        (f"{name}, {rule.rule}", score(rule.score), str(rule.num_items), _rule_note(rule))
        for side, name in names.items()
        for rule in statistics.normalisations[side]  # type: ignore[index]
    )
    if not rows:
        return Section(title="Normalisations")
    return Section(
        title="Normalisations", table=Table(headers=("likelihoods of, rule", "score", "n", ""), align="lrrl", rows=rows)
    )


def _rule_note(rule: "RuleScore") -> str:
    return ", ".join(text for text in ("its own" if rule.native else "", rule.reason or "") if text)


def subjects_section(statistics: "Statistics", names: Mapping[str, str]) -> Section:
    """Sub-task by sub-task, tests adjusted over all of them."""
    if len(statistics.subjects) < 2:
        return Section(title="Sub-tasks")
    rows = tuple(
        (
            one.subject,
            str(one.num_items),
            score(one.lm_eval),
            score(one.inspect),
            difference(one.gap.value),
            interval(one.gap.interval),
            p_value(one.gap.test.adjusted) if one.gap.test and one.gap.test.adjusted is not None else "",
        )
        for one in statistics.subjects[:_MOST_SUBJECTS]
    )
    table = Table(
        headers=("sub-task", "n", *names.values(), "gap", "95 % interval", "p (Holm)"), align="lrrrrlr", rows=rows
    )
    return Section(title="Sub-tasks", table=table)


def agreement_section(agreement: "Agreement", names: Mapping[str, str]) -> Section:
    """Raw agreement first, then what luck leaves of it, then the correlation over sub-tasks."""
    outcomes = agreement.outcomes
    rows = (
        ("both right", str(outcomes.both_right)),
        (f"only {names['lm_eval']} right", str(outcomes.only_lm_eval)),
        (f"only {names['inspect']} right", str(outcomes.only_inspect)),
        ("both wrong, same pick", str(outcomes.both_wrong_alike)),
        ("both wrong, other picks", str(outcomes.both_wrong_differently)),
        *((("both wrong, pick not known", str(outcomes.wrong_unknown)),) if outcomes.wrong_unknown else ()),
        *((("credit between 0 and 1", str(outcomes.partial)),) if outcomes.partial else ()),
        ("same pick", NO_VALUE if agreement.picks_agree is None else percent(float(agreement.picks_agree))),
        ("same correctness", percent(float(agreement.correctness_agrees))),
        ("Cohen's κ of the picks", coefficient(agreement.kappa_picks)),
        ("Cohen's κ of correctness", coefficient(agreement.kappa_correctness)),
        ("Pearson's r over sub-tasks", coefficient(agreement.pearson)),
        ("Spearman's r over sub-tasks", coefficient(agreement.spearman)),
        *((_SCATTER[name], coefficient(found)) for name, found in agreement.scatter_pearson.items()),
    )
    sentence = f"{count(agreement.num_items, 'common item')}; a correlation of 1 still allows a constant offset."
    return Section(
        title="How far the two agree", sentences=(sentence,), table=Table(headers=("", ""), align="lr", rows=rows)
    )


def coefficient(found: "Coefficient") -> str:
    """A coefficient with its number of points, or why it is not defined."""
    if found.value is None:
        return f"not defined: {found.reason}"
    shown = f"{found.value:.4f} (n = {found.num_points}"
    if found.mean_difference is not None:
        shown += f", mean difference {found.mean_difference:+.4f}"
    return shown + ")"
