"""Several models under both harnesses, in words and tables."""

from reconcile.ranking import Ranking
from reconcile.report.numbers import count, difference, interval, percent, score
from reconcile.report.sections import Section, Table
from reconcile.report.statistics_sections import coefficient

_HARNESSES = {"lm_eval": "lm-eval", "inspect": "Inspect"}


def ranking_sections(ranking: Ranking) -> list[Section]:
    """Scores and correlations, the order, the flips, the pairwise matrix."""
    return [_scores(ranking), _order(ranking), _flips(ranking), _matrix(ranking)]


def _scores(ranking: Ranking) -> Section:
    rows = tuple(
        (name, score(ours), score(theirs), difference(ours - theirs), coefficient(ranking.correlations[name]))
        for name, (ours, theirs) in ranking.scores.items()
    )
    table = Table(
        headers=("model", "lm-eval", "Inspect", "gap", "r of the harnesses over sub-tasks"), align="lrrrl", rows=rows
    )
    sentence = f"Over the {count(ranking.num_items, 'item')} that all models share."
    return Section(title="Scores", sentences=(sentence,), table=table, brief=True)


def _order(ranking: Ranking) -> Section:
    bounds = ranking.tau_interval
    shown = f" {interval(bounds)} ({bounds.method})" if bounds is not None else ""
    sentence = f"Kendall's τ-b between the two orders of the models: {coefficient(ranking.tau)}{shown}."
    level = "; ".join(f"{one} and {other}" for one, other in ranking.ties)
    after = (f"One harness alone puts level: {level}.",) if level else ()
    return Section(title="Order", sentences=(sentence, *after), brief=True)


def _flips(ranking: Ranking) -> Section:
    if not ranking.flips:
        return Section(title="Flips", sentences=("No two models stand in opposite order.",), brief=True)
    rows = tuple(
        (
            f"{flip.first} and {flip.second}",
            difference(flip.gap_lm_eval),
            difference(flip.gap_inspect),
            percent(flip.share_of_resamples),
        )
        for flip in ranking.flips
    )
    table = Table(
        headers=("models in opposite order", "lm-eval", "Inspect", "of resamples too"), align="lrrr", rows=rows
    )
    return Section(title="Flips", table=table, brief=True)


def _matrix(ranking: Ranking) -> Section:
    names = [f"{model}, {_HARNESSES[harness]}" for model, harness in ranking.rows]
    rows = tuple(
        (name, *("–" if cell.value is None else f"{cell.value:.3f}" for cell in line))
        for name, line in zip(names, ranking.matrix, strict=True)
    )
    numbers = tuple(str(index + 1) for index in range(len(names)))
    numbered = tuple((f"{index + 1}. {row[0]}", *row[1:]) for index, row in enumerate(rows))
    table = Table(headers=("r over sub-tasks", *numbers), align="l" + "r" * len(names), rows=numbered)
    return Section(title="Every pair", table=table)
