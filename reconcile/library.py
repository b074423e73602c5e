"""The ledger for notebooks: two logs, or two runs, as typed objects and data frames.

Imports neither torch nor a harness; Inspect's own reader is loaded when one of its logs is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm.errors import InputError
from reconcile.alignment import in_order_of, with_token_counts
from reconcile.ledger import Ledger
from reconcile.logs import read_inspect_run, read_lm_eval_run
from reconcile.page_ledger import PageLedger
from reconcile.runs import HarnessRun

if TYPE_CHECKING:
    import pandas

    from reconcile.agreement import Agreement
    from reconcile.statistics import Statistics

Log = HarnessRun | Path | str


@dataclass(frozen=True, kw_only=True)
class Reconciliation:
    """A ledger with the two runs it accounts for. The frames need pandas, `statistics` and `agreement` scipy."""

    ledger: Ledger | PageLedger
    left: HarnessRun
    right: HarnessRun

    def statistics(self, *, num_resamples: int = 10_000, seed: int = 0) -> "Statistics":
        """Intervals, tests, chance, ties and rules of a multiple-choice ledger."""
        from reconcile.statistics import measure

        return measure(self._choices(), num_resamples=num_resamples, seed=seed)

    def agreement(self) -> "Agreement":
        """How far the two runs of a multiple-choice ledger agree item by item."""
        from reconcile.agreement import agreement_of

        return agreement_of(self._choices())

    def components(self) -> "pandas.DataFrame":
        """One row a component: net, gross, counts, status; indexed by name."""
        rows = [
            {
                "component": one.name,
                "net": one.value,
                "exact": str(one.exact),
                "gross_up": float(one.gross_up),
                "gross_down": float(one.gross_down),
                "items_up": one.items_up,
                "items_down": one.items_down,
                "picks_changed": one.picks_changed,
                "status": one.status,
            }
            for one in self.ledger.components
        ]
        return _frame(rows, index="component")

    def cells(self) -> "pandas.DataFrame":
        """One row a cell of the lattice."""
        return _frame([_plain(vars(cell)) | {"off_path": cell.off_path} for cell in self.ledger.cells])

    def items(self) -> "pandas.DataFrame":
        """One row a common item: logged credits, each cell's pick and credit, each component's share."""
        if isinstance(self.ledger, PageLedger):
            return _frame([_plain(vars(page)) for page in self.ledger.pages])
        rows = []
        for row in self.ledger.items.rows():
            flat = _plain({n: v for n, v in vars(row).items() if not isinstance(v, Mapping)})
            for kind in ("picks", "credits", "contributions"):
                flat |= {f"{kind} {name}": _plain_value(value) for name, value in getattr(row, kind).items()}
            rows.append(flat)
        return _frame(rows)

    def _choices(self) -> Ledger:
        if isinstance(self.ledger, PageLedger):
            raise InputError("pages have no choices: statistics and agreement are those of multiple-choice runs")
        return self.ledger


def reconcile_runs(
    lm_eval: Log,
    inspect: Log,
    *,
    inspect_loglikelihood: Log | None = None,
    task: str | None = None,
    metric: str | None = None,
    scorer: str | None = None,
    tokenizer: Any = None,
    max_length: int = 1 << 30,
) -> Reconciliation:
    """The ledger of two finished runs, given as records or as what they logged.

    A path that Inspect wrote (.eval, or its .json) is read as Inspect's, any other as lm-eval's, on either side: two
    runs of one harness reconcile as well. `inspect_loglikelihood` are the same items by likelihood beside a generated
    run. `task`, `metric` (lm-eval's) and `scorer` (Inspect's) choose where a log holds several. `tokenizer` counts the
    tokens of choices where a log does not; without it what needs them is left unexplained.

    Raises:
        InputError: missing, damaged or empty logs, or runs that share nothing; one sentence.
    """
    left, right = (_run(log, task=task, metric=metric, scorer=scorer) for log in (lm_eval, inspect))
    extra = None if inspect_loglikelihood is None else _run(inspect_loglikelihood, task=None, metric=None, scorer=None)
    if tokenizer is not None:
        left, right = (with_token_counts(run, tokenizer, max_length) for run in (left, right))
    return Reconciliation(ledger=account(left, in_order_of(right, left), extra), left=left, right=right)


def account(
    left: HarnessRun, right: HarnessRun, likelihoods: HarnessRun | None = None, cross: Sequence[HarnessRun] = ()
) -> Ledger | PageLedger:
    """The ledger of two runs of one kind; `cross` are runs over pages with one side's text in the other's windows.

    Raises:
        InputError: one scores pages and the other choices, or they share nothing.
    """
    if bool(left.pages) != bool(right.pages):
        kinds = ["pages" if run.pages else "choices" for run in (left, right)]
        raise InputError(f"one log scores {kinds[0]} and the other {kinds[1]}: compare logs of one benchmark")
    if left.pages:
        from reconcile.perplexity import decompose_pages

        return decompose_pages(left, right, cross=[page for run in cross for page in run.pages])
    from reconcile.decompose import decompose

    return decompose(left, right, inspect_loglikelihood=likelihoods)


def _run(log: Log, *, task: str | None, metric: str | None, scorer: str | None) -> HarnessRun:
    if isinstance(log, HarnessRun):
        return log
    path = Path(log)
    if is_inspect_log(path):
        return read_inspect_run(path, scorer=scorer)
    return read_lm_eval_run(path, task=task, metric=metric)


def is_inspect_log(path: Path) -> bool:
    """Whether a path is for Inspect's reader: an .eval file, a .json that is not lm-eval's, or a folder of them."""
    if path.is_dir():
        return any(path.rglob("*.eval")) and not any(path.rglob("results*.json"))
    return path.suffix == ".eval" or (path.suffix == ".json" and not path.name.startswith("results"))


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain_value(value) for name, value in values.items()}


def _plain_value(value: Any) -> Any:
    from fractions import Fraction

    return float(value) if isinstance(value, Fraction) else value


def _frame(rows: list[dict[str, Any]], index: str | None = None) -> "pandas.DataFrame":
    try:
        import pandas
    except ImportError as error:
        raise ImportError("data frames need pandas: pip install 'harness-bridge[report]'") from error
    frame = pandas.DataFrame(rows)
    return frame.set_index(index) if index is not None else frame


__all__ = ["Reconciliation", "account", "is_inspect_log", "reconcile_runs"]
