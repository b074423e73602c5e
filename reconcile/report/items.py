"""items.csv: one line an item, what each side logged, what each cell picks, what each component owes to it."""

import csv
from pathlib import Path

from reconcile.ledger import ItemRow, Ledger
from reconcile.page_ledger import PageLedger

_FIXED = ("key", "occurrence", "subject", "question", "gold", "logged_lm_eval", "logged_inspect")


def write_items(path: Path, ledger: Ledger) -> None:
    """Writes the common items, in lm-eval's order."""
    cells = [cell.name for cell in ledger.cells]
    factors = list(ledger.items.contributions)
    header = [
        *_FIXED,
        *(f"pick {cell}" for cell in cells),
        *(f"credit {cell}" for cell in cells),
        *factors,
        "unexplained",
    ]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for row in ledger.items.rows():
            writer.writerow(_line(row, cells, factors))


def _line(row: ItemRow, cells: list[str], factors: list[str]) -> list[str]:
    fixed = [row.key, row.occurrence, row.subject, row.question, row.gold, row.logged_lm_eval, row.logged_inspect]
    picks = ["" if row.picks.get(cell) is None else row.picks[cell] for cell in cells]
    credits = [row.credits.get(cell, "") for cell in cells]
    shares = [row.contributions.get(factor, "") for factor in factors]
    return [str(value) for value in (*fixed, *picks, *credits, *shares, row.unexplained or "")]


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
