"""Writes a run's reports into its folder and prints the brief one."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reconcile.ledger import Ledger
from reconcile.page_ledger import PageLedger
from reconcile.proof import prove
from reconcile.report.document import ledger_document, page_document, write_document
from reconcile.report.facts import RunFacts
from reconcile.report.items import write_items, write_pages
from reconcile.report.ledger_sections import ledger_sections
from reconcile.report.markdown import as_markdown
from reconcile.report.names import side_names
from reconcile.report.page_sections import page_sections
from reconcile.report.proof_section import proof_section
from reconcile.report.recipe_section import recipe_section
from reconcile.report.sections import Section
from reconcile.report.statistics_sections import agreement_section
from reconcile.report.terminal import make_console, print_sections

if TYPE_CHECKING:
    from reconcile.agreement import Agreement
    from reconcile.statistics import Statistics


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report that was written: its title, all its sections, and how it ended in a sentence."""

    title: str
    sections: tuple[Section, ...]
    verdict: str


def write_report(folder: Path, ledger: Ledger | PageLedger, facts: RunFacts) -> Report:
    """report.md, reconcile.json and items.csv in `folder`."""
    if isinstance(ledger, PageLedger):
        sections, document = page_sections(ledger, facts), page_document(ledger, facts)
        write_pages(folder / "items.csv", ledger)
    else:
        sections, document = _choice_report(ledger, facts)
        write_items(folder / "items.csv", ledger)
    title = f"{facts.benchmark}: {facts.model} behind {' and behind '.join(side_names(ledger.harnesses).values())}"
    write_document(folder / "reconcile.json", document)
    (folder / "report.md").write_text(as_markdown(title, sections), encoding="utf-8")
    return Report(title=title, sections=tuple(sections), verdict=_verdict(ledger))


def _choice_report(ledger: Ledger, facts: RunFacts) -> tuple[list[Section], dict[str, Any]]:
    proof = prove(ledger, shared_store=facts.shared_store)
    measured = _measured(ledger, facts)
    statistics, agreement = measured if measured is not None else (None, None)
    sections = ledger_sections(ledger, facts, statistics)
    if proof is not None:
        sections.insert(3, proof_section(proof))
    if agreement is not None:
        sections.insert(-3, agreement_section(agreement, side_names(ledger.harnesses)))
    sections.insert(-2, recipe_section(ledger, facts, side_names(ledger.harnesses)))
    if measured is None:
        missing = "Intervals, tests and agreement need scipy: pip install 'harness-bridge[report]'"
        sections.append(Section(title="Not measured", sentences=(missing,), brief=True))
    return sections, ledger_document(ledger, facts, proof=proof, statistics=statistics, agreement=agreement)


def _measured(ledger: Ledger, facts: RunFacts) -> "tuple[Statistics, Agreement] | None":
    """What needs more than the ledger's own arithmetic; None where scipy is not installed."""
    try:
        from reconcile.agreement import agreement_of
        from reconcile.statistics import measure
    except ImportError as error:
        if error.name is None or not error.name.startswith("scipy"):
            raise
        return None
    return measure(ledger, seed=facts.seed), agreement_of(ledger)


def print_report(report: Report, folder: Path) -> None:
    """The brief sections and where the whole report stands, on standard output."""
    console = make_console()
    print_sections(console, report.title, report.sections)
    console.print()
    console.print(report.verdict, soft_wrap=True)
    console.print(f"Full report: {folder / 'report.md'}", soft_wrap=True, highlight=False)


def _verdict(ledger: Ledger | PageLedger) -> str:
    if ledger.accounted:
        return "The gap is accounted for: unexplained 0."
    if isinstance(ledger, PageLedger):
        return f"NOT accounted for: {'; '.join(ledger.faults)}."
    parts = [f"{len(ledger.unexplained)} items unexplained"] if ledger.unexplained else []
    return f"NOT accounted for: {'; '.join([*parts, *ledger.faults])}."
