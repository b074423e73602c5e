"""What two perplexities say beyond their own pages: intervals for other pages like these, in bits per byte."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from reconcile.page_ledger import PageLedger
from reconcile.resampling import group_numbers, percentile_bounds, stratified_means
from reconcile.significance import Interval

FEWEST_PAGES = 2


@dataclass(frozen=True, kw_only=True)
class PageStatistics:
    """Intervals of both sides' bits per byte and of their `gap`, by name; none where `reason` says why."""

    num_pages: int
    num_resamples: int
    seed: int
    level: float
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    reason: str | None = None


def measure_pages(
    ledger: PageLedger, *, num_resamples: int = 10_000, seed: int = 0, level: float = 0.95
) -> PageStatistics:
    """The paired bootstrap over the common pages, copies of one page together; it depends on `seed` alone.

    Each resample is a corpus of its own: its nats over its bytes, not a mean of the pages' rates.
    """
    pages = group_numbers([page.key for page in ledger.pages])
    num_pages = len(set(pages.tolist()))
    found = PageStatistics(num_pages=num_pages, num_resamples=num_resamples, seed=seed, level=level)
    if num_pages < FEWEST_PAGES:
        return replace(found, reason=f"an interval needs {FEWEST_PAGES} different pages or more that both scored")
    ours, theirs = ("+".join(names) or "lm_eval" for names in ((), _switched(ledger)))
    values = np.array([[page.nats[ours], page.nats[theirs], page.num_bytes] for page in ledger.pages], dtype=float)
    drawn = stratified_means(
        values, strata=np.zeros_like(pages), questions=pages, num_resamples=num_resamples, seed=seed
    )
    rates = drawn[:, :2] / drawn[:, 2:] / math.log(2)
    low, high = percentile_bounds(np.column_stack([rates, rates[:, 0] - rates[:, 1]]), level)
    intervals = {
        name: Interval(low=float(low[place]), high=float(high[place]), method="paired bootstrap of pages", level=level)
        for place, name in enumerate(("lm_eval", "inspect", "gap"))
    }
    return replace(found, intervals=intervals)


def _switched(ledger: PageLedger) -> tuple[str, ...]:
    """What is switched in Inspect's own cell."""
    return next((cell.switched for cell in ledger.cells if cell.native == "inspect"), ())
