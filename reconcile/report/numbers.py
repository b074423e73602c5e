"""How numbers are written for people: signs on differences, four decimals, exact fractions where they are short."""

from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reconcile.significance import Interval

NO_VALUE = "–"

_LEAST_SHOWN = 5e-5


def score(value: float | Fraction | None) -> str:
    """A score in [0, 1] to four decimals."""
    return NO_VALUE if value is None else f"{float(value):.4f}"


def difference(value: float | Fraction | None) -> str:
    """A signed difference to four decimals; an exact 0 is written 0, what four decimals would show as 0 by its power of
    ten.
    """
    if value is None:
        return NO_VALUE
    return tiny(value) if abs(float(value)) < _LEAST_SHOWN else f"{float(value):+.4f}"


def tiny(value: float | Fraction) -> str:
    """A small remainder: its power of ten matters, not its decimals."""
    return "0" if value == 0 else f"{float(value):+.1e}"


def exact(value: Fraction, longest: int = 16) -> str:
    """ "p/q" where it is short enough to read, else nothing."""
    text = fraction(value)
    return text if len(text) <= longest else ""


def fraction(value: Fraction) -> str:
    """ "p/q", or "p" for a whole number."""
    return str(value)


def percent(value: float) -> str:
    """A share as a percentage to one decimal."""
    return f"{100 * value:.1f} %"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """ "1 item", "3 items"."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def listed(names: list[str] | tuple[str, ...]) -> str:
    """ "a", "a and b", "a, b and c"."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def interval(bounds: "Interval | None") -> str:
    """ "[-0.0417, +0.1250]"; nothing where there is none."""
    return "" if bounds is None else f"[{bounds.low:+.4f}, {bounds.high:+.4f}]"


def unsigned_interval(bounds: "Interval | None") -> str:
    """ "[0.9876, 1.0417]", around what is no difference; nothing where there is none."""
    return "" if bounds is None else f"[{bounds.low:.4f}, {bounds.high:.4f}]"


def p_value(value: float) -> str:
    """A p-value to three digits."""
    return f"{value:.3g}"
