"""Several models under both harnesses as a page: the tables of the report, and the heatmaps that sum them up."""

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from reconcile.agreement import FEWEST_SUBJECTS
from reconcile.exact import mean
from reconcile.ranking import ModelCredits, Ranking
from reconcile.report.figures import heatmap_figure, items_of
from reconcile.report.forms import PLOTS_NAME, missing_package
from reconcile.report.numbers import count, listed
from reconcile.report.sections import Section
from reconcile.report.svg import Figure, standalone

_HARNESSES = {"lm_eval": "lm-eval", "inspect": "Inspect"}


def write_ranking_forms(
    folder: Path, title: str, sections: Sequence[Section], ranking: Ranking, models: Sequence[ModelCredits]
) -> None:
    """report.html (where jinja2 is installed) and the heatmaps as SVG, into `folder`."""
    figures = ranking_figures(ranking, models)
    place = folder / PLOTS_NAME
    place.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        (place / f"{name}.svg").write_text(standalone(figure), encoding="utf-8", newline="\n")
    if missing_package("html") is None:
        page = ranking_html(title, sections, ranking, figures)
        (folder / "report.html").write_text(page, encoding="utf-8", newline="\n")


def ranking_figures(ranking: Ranking, models: Sequence[ModelCredits]) -> dict[str, Figure]:
    """Correlations of every pair of (model, harness); the gap of every model on every sub-task with its correlation."""
    figures = [figure for figure in (_subtask_heatmap(ranking, models), _pair_heatmap(ranking)) if figure is not None]
    return {figure.name: figure for figure in figures}


def ranking_html(title: str, sections: Sequence[Section], ranking: Ranking, figures: dict[str, Figure]) -> str:
    """The page."""
    from reconcile.report.html import render, section_blocks

    shown = section_blocks(sections, figures, {"Scores": ("subtasks",), "Every pair": ("pairs",)})
    return render(
        "report.html",
        {
            "title": title,
            "eyebrow": f"{count(len(ranking.scores), 'model')} · {count(ranking.num_items, 'item')} that all share",
            "headline": title,
            "verdict": ranking_verdict(ranking),
            "chips": _chips(ranking),
            "tiles": (),
            "figures": figures,
            "recipes": (),
            "sections": shown,
            "closing": "",
            "items_note": "",
            "footer": "",
        },
    )


def ranking_verdict(ranking: Ranking) -> str:
    """The answer in one sentence."""
    if not ranking.flips:
        told = "No two models stand in opposite order under the two harnesses"
    else:
        pairs = listed([f"{flip.first} and {flip.second}" for flip in ranking.flips[:3]])
        more = len(ranking.flips) - 3
        rest = f" and {count(more, 'more pair')}" if more > 0 else ""
        told = f"The harnesses put {count(len(ranking.flips), 'pair')} of models in opposite order: {pairs}{rest}"
    tau = ranking.tau.value
    return f"{told}; Kendall's τ-b is {'not defined' if tau is None else f'{tau:.3f}'}."


def _chips(ranking: Ranking) -> list[dict[str, str]]:
    return [
        {"css": "", "text": f"{name}: r = {'not defined' if found.value is None else f'{found.value:.3f}'}"}
        for name, found in ranking.correlations.items()
    ]


def _pair_heatmap(ranking: Ranking) -> Figure:
    names = [f"{model}, {_HARNESSES[harness]}" for model, harness in ranking.rows]
    values = [[cell.value for cell in line] for line in ranking.matrix]
    points = ranking.matrix[0][0].num_points
    return heatmap_figure(
        names,
        names,
        values,
        title="Correlation of every pair over sub-tasks",
        caption=(
            f"Pearson's r over {count(points, 'sub-task')}; {items_of(ranking.num_items)} that all models share. Each "
            "row is a model under one harness's own protocol. A dash: not defined, because scores do not vary."
        ),
        name="pairs",
    )


def _subtask_heatmap(ranking: Ranking, models: Sequence[ModelCredits]) -> Figure | None:
    """Models × sub-tasks; None where the items belong to fewer than three."""
    gaps = {model.name: _gaps(model, models) for model in models}
    subjects = list(next(iter(gaps.values())))
    if len(subjects) < FEWEST_SUBJECTS:
        return None
    largest = max((abs(value) for found in gaps.values() for value in found.values()), default=Fraction(0))
    reach = f"-{float(largest):.2f} to +{float(largest):.2f}"
    return heatmap_figure(
        list(gaps),
        [*subjects, "r over sub-tasks"],
        [[*map(float, found.values()), ranking.correlations[name].value] for name, found in gaps.items()],
        title="Models × sub-tasks: lm-eval's score minus Inspect's",
        caption=(
            f"{items_of(ranking.num_items)} that all models share, each harness by its own protocol; colours reach "
            f"from {reach}. The last column is Pearson's r of the two harnesses' "
            "scores over the sub-tasks: near 1, rankings of sub-tasks do not depend on the harness."
        ),
        name="subtasks",
        limit=float(largest) or 1.0,
        last_limit=1.0,
    )


def _gaps(model: ModelCredits, models: Sequence[ModelCredits]) -> dict[str, Fraction]:
    """The model's gap on each sub-task, over the items that all models share."""
    shared: set[Any] = set.intersection(*(set(one.items) for one in models))
    differences: defaultdict[str, list[Fraction]] = defaultdict(list)
    rows = zip(model.items, model.subjects, model.lm_eval, model.inspect, strict=True)
    for item, subject, ours, theirs in rows:
        if item in shared:
            differences[subject].append(ours - theirs)
    return {subject: mean(differences[subject]) for subject in sorted(differences)}
