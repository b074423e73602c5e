"""Writes a run's reports into its folder and prints the brief one."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reconcile.ledger import Ledger
from reconcile.page_ledger import PageLedger
from reconcile.proof import prove
from reconcile.report.document import ledger_document, page_document
from reconcile.report.facts import RunFacts
from reconcile.report.forms import FORMATS, write_forms
from reconcile.report.ledger_sections import ledger_sections
from reconcile.report.names import side_names
from reconcile.report.numerics_section import numerics_section
from reconcile.report.page_sections import page_sections
from reconcile.report.parts import Parts
from reconcile.report.proof_section import proof_section
from reconcile.report.recipe_section import recipe_section
from reconcile.report.sections import Section
from reconcile.report.statistics_sections import agreement_section
from reconcile.report.terminal import make_console, print_sections

if TYPE_CHECKING:
    from reconcile.agreement import Agreement
    from reconcile.statistics import Statistics


def write_report(folder: Path, ledger: Ledger | PageLedger, facts: RunFacts) -> Parts:
    """Every form of the report, in `folder`; a form whose package is not installed is left out."""
    parts = report_parts(ledger, facts)
    write_forms(folder, parts, FORMATS)
    return parts


def report_parts(ledger: Ledger | PageLedger, facts: RunFacts) -> Parts:
    """What every form of a ledger's report is rendered from."""
    title = f"{facts.benchmark}: {facts.model} behind {' and behind '.join(side_names(ledger.harnesses).values())}"
    if isinstance(ledger, PageLedger):
        return Parts(
            ledger=ledger,
            facts=facts,
            title=title,
            sections=tuple(page_sections(ledger, facts)),
            verdict=_verdict(ledger),
            document=page_document(ledger, facts),
        )
    measured = _measured(ledger, facts)
    statistics, agreement = measured if measured is not None else (None, None)
    sections, document = _choice_report(ledger, facts, statistics, agreement)
    return Parts(
        ledger=ledger,
        facts=facts,
        title=title,
        sections=tuple(sections),
        verdict=_verdict(ledger),
        document=document,
        statistics=statistics,
        agreement=agreement,
    )


def _choice_report(
    ledger: Ledger, facts: RunFacts, statistics: "Statistics | None", agreement: "Agreement | None"
) -> tuple[list[Section], dict[str, Any]]:
    proof = prove(ledger, shared_store=facts.shared_store)
    sections = ledger_sections(ledger, facts, statistics)
    if proof is not None:
        sections.insert(3, proof_section(proof))
    if agreement is not None:
        sections.insert(-3, agreement_section(agreement, side_names(ledger.harnesses)))
    sections.insert(-3, numerics_section(facts, side_names(ledger.harnesses)))
    sections.insert(-2, recipe_section(ledger, facts, side_names(ledger.harnesses)))
    if statistics is None:
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


def print_report(report: Parts, folder: Path, further: Sequence[Section] = ()) -> None:
    """The brief sections, `further` ones and where the whole report stands, on standard output."""
    console = make_console()
    print_sections(console, report.title, [*report.sections, *further])
    console.print()
    console.print(report.verdict, soft_wrap=True)
    page = folder / "report.html"
    console.print(f"Full report: {page if page.is_file() else folder / 'report.md'}", soft_wrap=True, highlight=False)


def _verdict(ledger: Ledger | PageLedger) -> str:
    if ledger.accounted:
        return "The gap is accounted for: unexplained 0."
    if isinstance(ledger, PageLedger):
        return f"NOT accounted for: {'; '.join(ledger.faults)}."
    parts = [f"{len(ledger.unexplained)} items unexplained"] if ledger.unexplained else []
    return f"NOT accounted for: {'; '.join([*parts, *ledger.faults])}."
