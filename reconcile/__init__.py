"""The ledger: runs both harnesses, or reads their logs, and accounts for the gap between their scores.

`from reconcile import reconcile_runs` gives it to notebooks. Importing the package loads nothing; the names are
fetched when first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reconcile.library import Reconciliation, reconcile_runs

__all__ = ["Reconciliation", "reconcile_runs"]


def __getattr__(name: str) -> Any:
    """Fetch a public name from its module (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from reconcile import library

    return getattr(library, name)
