"""items.csv: one line an item, what each side logged, what each cell picks, what each component owes to it."""

import csv
from pathlib import Path

from reconcile.ledger import ItemRow, Ledger
from reconcile.page_ledger import PageLedger
from reconcile.ties import tied_items

_FIXED = ("key", "occurrence", "subject", "question", "gold", "logged_lm_eval", "logged_inspect")
_TIED = ("tied_lm_eval", "tied_inspect")


def write_items(path: Path, ledger: Ledger) -> None:
    """Writes the common items, in lm-eval's order."""
    cells = [cell.name for cell in ledger.cells]
    factors = list(ledger.items.contributions)
    header = [
        *_FIXED,
        *_TIED,
        *(f"pick {cell}" for cell in cells),
        *(f"credit {cell}" for cell in cells),
        *factors,
        "unexplained",
    ]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        ties = tied_items(ledger)
        for row, *tied in zip(ledger.items.rows(), ties["lm_eval"], ties["inspect"], strict=True):
            writer.writerow(_line(row, tied, cells, factors))


def _line(row: ItemRow, tied: list[bool | None], cells: list[str], factors: list[str]) -> list[str]:
    fixed = [row.key, row.occurrence, row.subject, row.question, row.gold, row.logged_lm_eval, row.logged_inspect]
    ties = ["" if one is None else one for one in tied]
    picks = ["" if row.picks.get(cell) is None else row.picks[cell] for cell in cells]
    credits = [row.credits.get(cell, "") for cell in cells]
    shares = [row.contributions.get(factor, "") for factor in factors]
    return [str(value) for value in (*fixed, *ties, *picks, *credits, *shares, row.unexplained or "")]


def write_pages(path: Path, ledger: PageLedger) -> None:
    """Writes the common pages: their own counts, nats and tokens of every text and window."""
    variants = list(ledger.pages[0].nats)
    fixed = ["key", "sample_id", "num_words", "num_bytes", "lm_eval_status", "inspect_status"]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*fixed, *(f"nats {name}" for name in variants), *(f"tokens {name}" for name in variants)])
        for page in ledger.pages:
            writer.writerow(
                [
                    page.key,
                    page.sample_id,
                    page.num_words,
                    page.num_bytes,
                    page.lm_eval_status.value,
                    page.inspect_status.value,
                    *(page.nats[name] for name in variants),
                    *(page.num_tokens[name] for name in variants),
                ]
            )
