"""items.parquet: one row an item with all there is to know about it, for analysis; lists go by original choice."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from reconcile.agreement import item_outcomes
from reconcile.choices import ChoiceTable, has_scores
from reconcile.ledger import ItemRow, Ledger, SideName
from reconcile.page_ledger import PageLedger
from reconcile.runs import SampleRecord
from reconcile.ties import tied_items

_SIDES: tuple[SideName, SideName] = ("lm_eval", "inspect")


def write_parquet(path: Path, ledger: Ledger | PageLedger) -> None:
    """Writes the common items or pages; the same ledger gives the same bytes.

    Raises:
        ImportError: pyarrow is not installed.
    """
    import pyarrow
    from pyarrow import parquet

    rows = _page_rows(ledger) if isinstance(ledger, PageLedger) else _item_rows(ledger)
    names = list(rows[0]) if rows else []
    columns = {name: pyarrow.array([row[name] for row in rows]) for name in names}
    parquet.write_table(pyarrow.table(columns), path, compression="zstd")


def _item_rows(ledger: Ledger) -> list[dict[str, Any]]:
    outcomes, ties = item_outcomes(ledger), tied_items(ledger)
    scores = {side: _own_scores(ledger, side) for side in _SIDES}
    place = {position: row for row, position in enumerate(ledger.items.replayed.tolist())}
    cells, factors = [cell.name for cell in ledger.cells], list(ledger.items.contributions)
    rows = []
    for position, (row, pair) in enumerate(zip(ledger.items.rows(), ledger.items.pairs, strict=True)):
        sides = {
            f"{side} {name}": value
            for side, sample in zip(_SIDES, pair, strict=True)
            for name, value in _side(sample, scores[side], place.get(position)).items()
        }
        tied = {f"tied_{side}": ties[side][position] for side in _SIDES}
        rows.append({**_item(row, pair[0], outcomes[position]), **tied, **sides, **_by_cell(row, cells, factors)})
    return rows


def _item(row: ItemRow, sample: SampleRecord, outcome: str) -> dict[str, Any]:
    return {
        "key": _text(row.key),
        "occurrence": row.occurrence,
        "subject": _text(row.subject),
        "question": _text(row.question),
        "choices": [_text(choice) for choice in sample.choices],
        "gold": row.gold,
        "outcome": outcome,
        "logged_lm_eval": float(row.logged_lm_eval),
        "logged_inspect": float(row.logged_inspect),
        "unexplained": _text(row.unexplained),
    }


def _side(sample: SampleRecord, scores: Sequence[list[float]] | None, row: int | None) -> dict[str, Any]:
    known = sample.scores
    return {
        "sample_id": _text(sample.sample_id),
        "status": sample.status.value,
        "prompt": _text(sample.prompt),
        "continuations": [_text(text) for text in sample.continuations],
        "logprobs": [score.logprob for score in known],
        "num_chars": [score.num_chars for score in known],
        "num_bytes": [score.num_bytes for score in known],
        "num_tokens": [score.num_tokens for score in known],
        "unconditional_logprobs": [score.unconditional_logprob for score in known],
        "request_digests": [score.request_digest for score in known],
        "normalised_scores": None if scores is None or row is None else scores[row][: len(sample.choices)],
        "pick": sample.pick,
        "answer": _text(sample.answer),
        "error": _text(sample.error),
    }


def _by_cell(row: ItemRow, cells: Sequence[str], factors: Sequence[str]) -> dict[str, Any]:
    return {
        **{f"pick {cell}": row.picks.get(cell) for cell in cells},
        **{f"credit {cell}": _float(row.credits, cell) for cell in cells},
        **{f"share {factor}": _float(row.contributions, factor) for factor in factors},
    }


def _float(values: Mapping[str, Fraction], name: str) -> float | None:
    return None if name not in values else float(values[name])


def _own_scores(ledger: Ledger, side: SideName) -> list[list[float]] | None:
    """The replayed items' scores under the side's own normalisation."""
    table: ChoiceTable | None = ledger.items.choices[side]
    if table is None or not any(has_scores(pair[_SIDES.index(side)]) for pair in ledger.items.pairs):
        return None
    scores: list[list[float]] = np.asarray(table.scores(ledger.protocols[side].normalisation)).tolist()
    return scores


def _page_rows(ledger: PageLedger) -> list[dict[str, Any]]:
    return [
        {
            "key": _text(page.key),
            "sample_id": _text(page.sample_id),
            "num_words": page.num_words,
            "num_bytes": page.num_bytes,
            "lm_eval_status": page.lm_eval_status.value,
            "inspect_status": page.inspect_status.value,
            **{f"nats {name}": float(value) for name, value in page.nats.items()},
            **{f"tokens {name}": value for name, value in page.num_tokens.items()},
        }
        for page in ledger.pages
    ]


def _text(text: str | None) -> str | None:
    """A text as UTF-8 can hold it: a lone surrogate becomes its escape."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()
