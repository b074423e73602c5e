"""Several models under both harnesses as a page: the tables of the report, and the heatmaps that sum them up."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

from reconcile.agreement import FEWEST_SUBJECTS
from reconcile.ledger import SCHEMA_VERSION
from reconcile.ranking import Ranking
from reconcile.report.document import write_document
from reconcile.report.figures import heatmap_figure, items_of
from reconcile.report.forms import PLOTS_NAME, missing_package
from reconcile.report.markdown import as_markdown
from reconcile.report.numbers import count, listed
from reconcile.report.ranking_sections import ranking_sections
from reconcile.report.sections import Section
from reconcile.report.svg import Figure, standalone
from reconcile.run_folder import DOCUMENT_NAME

RANKING_TITLE = "Do both harnesses rank the models alike?"
RANKING_FORMATS = ("json", "md", "plots", "html")
_HARNESSES = {"lm_eval": "lm-eval", "inspect": "Inspect"}


def write_ranking_forms(
    folder: Path, ranking: Ranking, runs: Sequence[str], formats: Collection[str] = RANKING_FORMATS
) -> list[Path]:
    """Writes the forms that are asked for into `folder`, report.html only where jinja2 is installed; `runs` are the
    folders they were made from. Returns their places.
    """
    sections, figures, written = ranking_sections(ranking), ranking_figures(ranking), []
    if "json" in formats:
        written.append(folder / DOCUMENT_NAME)
        write_document(written[-1], {"schema_version": SCHEMA_VERSION, "runs": runs, **asdict(ranking)})
    if "md" in formats:
        written.append(folder / "report.md")
        written[-1].write_text(as_markdown(RANKING_TITLE, sections), encoding="utf-8", newline="\n")
    if "plots" in formats:
        written.append(folder / PLOTS_NAME)
        written[-1].mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            (written[-1] / f"{name}.svg").write_text(standalone(figure), encoding="utf-8", newline="\n")
    if "html" in formats and missing_package("html") is None:
        written.append(folder / "report.html")
        page = ranking_html(RANKING_TITLE, sections, ranking, figures)
        written[-1].write_text(page, encoding="utf-8", newline="\n")
    return written


def ranking_figures(ranking: Ranking) -> dict[str, Figure]:
    """Correlations of every pair of (model, harness); the gap of every model on every sub-task with its correlation."""
    figures = [figure for figure in (_subtask_heatmap(ranking), _pair_heatmap(ranking)) if figure is not None]
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


def _subtask_heatmap(ranking: Ranking) -> Figure | None:
    """Models × sub-tasks; None where the items belong to fewer than three."""
    gaps = ranking.subtask_gaps
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
