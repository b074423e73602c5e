"""Writes a run's reports into its folder and prints the brief one."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from reconcile.ledger import Ledger
from reconcile.page_ledger import PageLedger
from reconcile.proof import prove
from reconcile.report.document import ledger_document, page_document
from reconcile.report.facts import RunFacts
from reconcile.report.forms import FORMATS, write_forms
from reconcile.report.ledger_sections import ledger_sections
from reconcile.report.names import side_names
from reconcile.report.numbers import count, difference, score
from reconcile.report.numerics_section import numerics_section
from reconcile.report.page_sections import page_sections
from reconcile.report.parts import Parts
from reconcile.report.proof_section import failed_proofs, proof_line, proof_section, side_proof_sections
from reconcile.report.recipe_section import recipe_section
from reconcile.report.sections import Section
from reconcile.report.statistics_sections import agreement_section
from reconcile.report.terminal import make_console, print_command, print_sections
from reconcile.report.texts import visible
from reconcile.report.verdict import verdict_sentence

if TYPE_CHECKING:
    from rich.console import Console

    from reconcile.agreement import Agreement
    from reconcile.page_statistics import PageStatistics
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
        pages = _measured_pages(ledger, facts)
        return Parts(
            ledger=ledger,
            facts=facts,
            title=title,
            sections=tuple(page_sections(ledger, facts, pages)),
            verdict=_verdict(ledger, facts),
            document=page_document(ledger, facts, statistics=pages),
            page_statistics=pages,
        )
    measured = _measured(ledger, facts)
    statistics, agreement = measured if measured is not None else (None, None)
    sections, document = _choice_report(ledger, facts, statistics, agreement)
    return Parts(
        ledger=ledger,
        facts=facts,
        title=title,
        sections=tuple(sections),
        verdict=_verdict(ledger, facts),
        document=document,
        statistics=statistics,
        agreement=agreement,
    )


def _choice_report(
    ledger: Ledger, facts: RunFacts, statistics: "Statistics | None", agreement: "Agreement | None"
) -> tuple[list[Section], dict[str, Any]]:
    proof = prove(ledger, shared_store=facts.shared_store)
    sections = ledger_sections(ledger, facts, statistics)
    names = side_names(ledger.harnesses)
    sections[3:3] = [
        *([proof_section(proof)] if proof is not None else []),
        *side_proof_sections(facts.proofs, names),
    ]
    if agreement is not None:
        sections.insert(-3, agreement_section(agreement, names))
    sections.insert(-3, numerics_section(facts, names))
    sections.insert(-2, recipe_section(ledger, facts, names))
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


def _measured_pages(ledger: PageLedger, facts: RunFacts) -> "PageStatistics | None":
    """As `_measured`, of a ledger of pages."""
    try:
        from reconcile.page_statistics import measure_pages
    except ImportError as error:
        if error.name is None or not error.name.startswith("scipy"):
            raise
        return None
    return measure_pages(ledger, seed=facts.seed)


def print_report(report: Parts, folder: Path, *, quiet: bool = False) -> None:
    """The brief sections, the verdict, the command that closes the gap and where the whole report stands, on standard
    output; a quiet one has only the scores, a line a proof, the verdict and the place.
    """
    console = make_console()
    if quiet:
        console.print(Text(_scores_line(report)))
        for proof in report.facts.proofs:
            console.print(Text(proof_line(proof, side_names(report.ledger.harnesses))), soft_wrap=True)
    else:
        print_sections(console, report.title, report.sections)
        console.print()
        console.print(Text(visible(verdict_sentence(report.ledger))))
        _print_recipe(console, report)
    good = "bold green" if report.holds else "bold red"
    console.print(Text(visible(report.verdict), style=good), soft_wrap=True)
    page = folder / "report.html"
    console.print(Text(f"Full report: {page if page.is_file() else folder / 'report.md'}"), soft_wrap=True)
    if not quiet:
        others = [
            name for name in ("report.md", "table.tex", "items.csv", "reconcile.json") if (folder / name).is_file()
        ]
        console.print(Text(f"Beside it: {', '.join(others)}", style="dim"), soft_wrap=True)


def _scores_line(report: Parts) -> str:
    ledger, names = report.ledger, side_names(report.ledger.harnesses)
    if isinstance(ledger, PageLedger):
        bits = ledger.bits_per_byte
        scores = [f"{name} {getattr(bits, side):.4f}" for side, name in names.items()]
        return f"{report.facts.benchmark}, bits per byte: {', '.join(scores)}, gap {bits.gap:+.4f}"
    scores = [f"{name} {score(ledger.reported[side])}" for side, name in names.items()]
    return f"{report.facts.benchmark}: {', '.join(scores)}, gap {difference(ledger.gap)}"


def _print_recipe(console: "Console", report: Parts) -> None:
    """The first command that makes both sides score by one protocol, where there is a gap to close."""
    commands = [command for section in report.sections for command in section.commands if not command.startswith("#")]
    pages = isinstance(report.ledger, PageLedger)
    if commands and report.ledger.gap:
        how = ", in bits per byte, with nothing shared:" if pages else ", and prove it request by request:"
        console.print(Text(f"To make the two agree{how}"))
        print_command(console, commands[0])


def _verdict(ledger: Ledger | PageLedger, facts: RunFacts) -> str:
    return failed_proofs(facts.proofs, side_names(ledger.harnesses)) + _accounted(ledger)


def _accounted(ledger: Ledger | PageLedger) -> str:
    if ledger.accounted:
        return "The gap is accounted for: unexplained 0."
    return f"NOT accounted for: {unaccounted_parts(ledger)}."


def unaccounted_parts(ledger: Ledger | PageLedger) -> str:
    """What of a ledger is not accounted for: how many items, and which reported values."""
    unexplained = [] if isinstance(ledger, PageLedger) else ledger.unexplained
    parts = [f"{count(len(unexplained), 'item')} unexplained"] if unexplained else []
    return "; ".join([*parts, *ledger.faults])
