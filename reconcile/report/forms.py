"""Every form of a report, by name: what it is called on the command line, which files it makes, what it needs."""

import shutil
from collections.abc import Callable, Collection, Mapping
from importlib.util import find_spec
from pathlib import Path

from llm.errors import InputError
from reconcile.page_ledger import PageLedger
from reconcile.report.document import write_document
from reconcile.report.items import write_items, write_pages
from reconcile.report.markdown import as_markdown
from reconcile.report.parts import Parts
from reconcile.report.verdict import verdict_sentence

PLOTS_NAME = "plots"


def write_forms(folder: Path, parts: Parts, formats: Collection[str]) -> dict[str, Path]:
    """Writes the forms that are asked for into `folder`; returns their places by name.

    A form whose package is missing is left out and not in the result; `missing_package` says what it needs.
    """
    written = {}
    for name, write in _WRITERS.items():
        if name in formats and missing_package(name) is None:
            written[name] = write(folder, parts)
    return written


def missing_package(form: str) -> str | None:
    """The package a form needs and this installation lacks."""
    needed = {"html": ("jinja2", "scipy"), "plots": ("scipy",), "parquet": ("pyarrow", "scipy"), "latex": ("scipy",)}
    return next((name for name in needed.get(form, ()) if find_spec(name) is None), None)


def checked_formats(text: str) -> tuple[str, ...]:
    """The forms named in a comma-separated list.

    Raises:
        InputError: a name that no form has, or none at all.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in FORMATS]
    if unknown or not names:
        given = ", ".join(unknown) or "nothing"
        raise InputError(f"no such format: {given}; there are {', '.join(FORMATS)}")
    return names


def _write_json(folder: Path, parts: Parts) -> Path:
    path = folder / "reconcile.json"
    write_document(path, parts.document)
    return path


def _write_csv(folder: Path, parts: Parts) -> Path:
    path = folder / "items.csv"
    if isinstance(parts.ledger, PageLedger):
        write_pages(path, parts.ledger)
    else:
        write_items(path, parts.ledger)
    return path


def _write_markdown(folder: Path, parts: Parts) -> Path:
    lead = (verdict_sentence(parts.ledger), parts.verdict)
    return _written(folder / "report.md", as_markdown(parts.title, parts.sections, lead=lead))


def _write_html(folder: Path, parts: Parts) -> Path:
    from reconcile.report.html import report_page

    return _written(folder / "report.html", report_page(parts))


def _write_latex(folder: Path, parts: Parts) -> Path:
    from reconcile.report.latex import latex_table

    return _written(folder / "table.tex", latex_table(parts))


def _write_plots(folder: Path, parts: Parts) -> Path:
    from reconcile.report.ledger_figures import ledger_figures, page_figures
    from reconcile.report.svg import standalone

    ledger = parts.ledger
    if isinstance(ledger, PageLedger):
        figures = page_figures(ledger)
    else:
        figures = ledger_figures(ledger, parts.statistics, parts.agreement)
    place = folder / PLOTS_NAME
    if place.is_dir():
        shutil.rmtree(place)
    place.mkdir(parents=True)
    for name, figure in figures.items():
        _written(place / f"{name}.svg", standalone(figure))
    return place


def _write_parquet(folder: Path, parts: Parts) -> Path:
    from reconcile.report.parquet import write_parquet

    path = folder / "items.parquet"
    write_parquet(path, parts.ledger)
    return path


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


_WRITERS: Mapping[str, Callable[[Path, Parts], Path]] = {
    "json": _write_json,
    "csv": _write_csv,
    "parquet": _write_parquet,
    "md": _write_markdown,
    "latex": _write_latex,
    "plots": _write_plots,
    "html": _write_html,
}

FORMATS: tuple[str, ...] = tuple(_WRITERS)
