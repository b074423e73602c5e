"""Differences in points, the unit of --fail-over: a hundredth of a score of 1, or of a bit per byte."""

from fractions import Fraction

from reconcile.ledger import Ledger
from reconcile.page_ledger import PageLedger

SLACK = 1e-9
"""In points: a difference that is exactly the allowed one must not fail for the last digit of a float."""


def points(difference: float | Fraction) -> float:
    """How many points a difference of scores is, without its sign."""
    return 100 * abs(float(difference))


def gap_points(ledger: Ledger | PageLedger) -> float:
    """The headline gap: of WikiText that of bits per byte, as the perplexities have units of their own."""
    return points(ledger.bits_per_byte.gap if isinstance(ledger, PageLedger) else ledger.gap)


def is_past(found: float, allowed: float | None) -> bool:
    """Whether there are more points than are allowed; None allows any number."""
    return allowed is not None and found > allowed + SLACK
