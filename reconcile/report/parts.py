"""Everything a report is rendered from, whichever its form."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reconcile.ledger import Ledger
from reconcile.page_ledger import PageLedger
from reconcile.report.facts import RunFacts
from reconcile.report.sections import Section

if TYPE_CHECKING:
    from reconcile.agreement import Agreement
    from reconcile.page_statistics import PageStatistics
    from reconcile.statistics import Statistics


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A ledger, what was measured around it, and both said in sections and as a document.

    `verdict` says in a sentence whether the gap is accounted for, and first which proof failed.
    """

    ledger: Ledger | PageLedger
    facts: RunFacts
    title: str
    sections: tuple[Section, ...]
    verdict: str
    document: Mapping[str, Any] = field(default_factory=dict)
    statistics: "Statistics | None" = None
    agreement: "Agreement | None" = None
    page_statistics: "PageStatistics | None" = None

    @property
    def holds(self) -> bool:
        """Whether the gap is accounted for and every proof that was asked for holds."""
        return self.ledger.accounted and all(proof.holds for proof in self.facts.proofs)
