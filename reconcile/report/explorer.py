"""The items of a report's explorer as one compact document: texts that repeat are stored once.

A prompt is its sub-task's common beginning (the few-shot block) and a shape, the list of what follows: literal texts by
number and, where the item's own question or choices stand, references to those. 14,042 five-shot items so take their
questions and numbers, not their prompts. All texts are made visible (see `texts`) before they are cut.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from reconcile.ledger import Ledger
from reconcile.report.ledger_figures import outcome_labels
from reconcile.report.names import FACTORS, SIDES, side_names
from reconcile.report.texts import common_beginning, visible
from reconcile.runs import Protocol, SampleRecord, Status
from reconcile.ties import tied_items

QUESTION = -1
"""The reference to the question; choice i is -2 - i."""

_SHORTEST_PREFIX, _SHORTEST_REFERENCE = 120, 4
CHUNK = 500

References = list[tuple[str, int]]


class Texts:
    """Numbers texts, shapes and lists, each stored once."""

    def __init__(self) -> None:
        self._places: dict[Any, int] = {}
        self.values: list[Any] = []

    def place(self, value: Any) -> int:
        """The number of a hashable value."""
        if value not in self._places:
            self._places[value] = len(self.values)
            self.values.append(value)
        return self._places[value]


def explorer_document(ledger: Ledger) -> tuple[dict[str, Any], list[list[Any]]]:
    """(index, rows): what the list and its filters need, and one row an item with all the rest; see `_row`."""
    builder = _Builder(ledger)
    rows = builder.rows()
    return builder.index(), rows


def script_json(value: Any) -> str:
    """JSON for a script element: nothing in it can end the element, open a comment or direct text."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for mark, name in (
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("&", "\\u0026"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ):
        text = text.replace(mark, name)
    return text


class _Builder:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.table = ledger.items
        self.cells = [cell for cell in ledger.cells if cell.name in self.table.credits]
        self.factors = list(self.table.contributions)
        self.switches = sorted({name for cell in self.cells for name in cell.switched})
        self.literals, self.shapes, self.lists, self.prefixes = Texts(), Texts(), Texts(), Texts()
        self.subjects = Texts()
        self.beginnings = _beginnings(ledger)
        self.rows_of = {position: row for row, position in enumerate(self.table.replayed.tolist())}

    def index(self) -> dict[str, Any]:
        from reconcile.agreement import item_outcomes

        labels = outcome_labels(self.ledger)
        numbers = {name: place for place, name in enumerate(labels)}
        names = side_names(self.ledger.harnesses)
        questions = [visible(left.question).strip() for left, _ in self.table.pairs]
        return {
            "subjects": [visible(name) for name in self.subjects.values],
            "subject": [self.subjects.place(left.subject) for left, _ in self.table.pairs],
            "outcomes": [[name, label] for name, label in labels.items()],
            "outcome": [numbers[name] for name in item_outcomes(self.ledger)],
            "factors": [[name, FACTORS.get(name, name)] for name in self.factors],
            "switches": [[name, FACTORS.get(name, name)] for name in self.switches],
            "moves": self._moves(),
            "changes": self._changes(),
            "ties": self._ties(),
            "unexplained": sorted(self.table.reasons),
            "question": questions,
            "sides": [{"name": names[side], **_rule(self.ledger.protocols[side])} for side in SIDES],
            "cells": [
                {
                    "switched": sorted(self.switches.index(name) for name in cell.switched),
                    "native": cell.native,
                    "template": cell.template,
                    "normalisation": cell.normalisation,
                    "tie": cell.tie_break,
                    "readout": cell.readout,
                }
                for cell in self.cells
            ],
            "denominators": [self.table.denominator, self.table.contribution_denominator],
            "literals": self.literals.values,
            "shapes": [list(shape) for shape in self.shapes.values],
            "lists": [list(values) for values in self.lists.values],
            "prefixes": self.prefixes.values,
            "chunk": CHUNK,
        }

    def rows(self) -> list[list[Any]]:
        return [self._row(position, *pair) for position, pair in enumerate(self.table.pairs)]

    def _row(self, position: int, left: SampleRecord, right: SampleRecord) -> list[Any]:
        """[key, gold, choices, [left side], [right side], picks, credits, shares, why unexplained].

        A side is [prefix, shape, continuation shapes, logprobs, [chars, bytes, tokens], logprobs after the empty
        context, logged credit, logged pick, status, generated answer or error]; picks and credits go by cell, shares
        by factor, as numerators. 0 stands for what there is none of.
        """
        self.subjects.place(left.subject)
        row = self.rows_of.get(position)
        choices = [visible(choice).strip() for choice in left.choices]
        references = _references(visible(left.question).strip(), choices)
        place = row if row is not None else 0
        return [
            visible(left.key.digest)[:16] + (f".{left.key.occurrence}" if left.key.occurrence else ""),
            left.gold,
            choices,
            self._side(left, "lm_eval", references, self.table.logged_lm_eval[position]),
            self._side(right, "inspect", references, self.table.logged_inspect[position]),
            0 if row is None else [int(self.table.picks[cell.name][place]) for cell in self.cells],
            0 if row is None else [int(self.table.credits[cell.name][place]) for cell in self.cells],
            0 if row is None else [int(self.table.contributions[name][place]) for name in self.factors],
            visible(self.table.reasons.get(position, "")) or 0,
        ]

    def _side(self, sample: SampleRecord, side: str, references: References, credit: Fraction) -> list[Any]:
        prompt, prefix = sample.prompt, 0
        beginning = self.beginnings.get((side, sample.subject), "")
        if beginning:
            prefix, prompt = self.prefixes.place(visible(beginning)) + 1, prompt.removeprefix(beginning)
        prompt = visible(prompt.replace("\x1e", "\n⸻ or, for another choice:\n"))
        scores = sample.scores
        unconditional = [_number(score.unconditional_logprob) for score in scores]
        said = sample.answer if sample.answer is not None else sample.error
        return [
            prefix,
            self._shape(prompt, references),
            self._list([self._shape(visible(text), references) for text in sample.continuations]),
            [_number(score.logprob) for score in scores],
            [
                self._list([score.num_chars for score in scores]),
                self._list([score.num_bytes for score in scores]),
                self._list([0 if score.num_tokens is None else score.num_tokens for score in scores]),
            ],
            unconditional if any(value is not None for value in unconditional) else 0,
            str(credit),
            -1 if sample.pick is None else sample.pick,
            0 if sample.status is Status.SCORED else sample.status.value,
            visible(said) if said else 0,
        ]

    def _shape(self, text: str, references: References) -> int:
        """The number of the shape of a text: literals by number, its item's question and choices by reference."""
        pieces: list[str | int] = [text]
        for content, reference in references:
            if len(content) <= len(text):
                pieces = [part for piece in pieces for part in _parted(piece, content, reference)]
        return self.shapes.place(
            tuple(self.literals.place(piece) if isinstance(piece, str) else piece for piece in pieces)
        )

    def _list(self, values: list[int]) -> int:
        return self.lists.place(tuple(values))

    def _moves(self) -> list[int]:
        """One number an item: bit f is set where component f is not 0 for it."""
        masks = [0] * self.table.num_items
        for bit, name in enumerate(self.factors):
            for row, share in enumerate(self.table.contributions[name]):
                if share:
                    masks[int(self.table.replayed[row])] |= 1 << bit
        return masks

    def _changes(self) -> list[int]:
        """One number an item: bit s is set where throwing switch s somewhere changes the pick."""
        masks = [0] * self.table.num_items
        cells = {frozenset(cell.switched): self.table.picks[cell.name] for cell in self.cells}
        for bit, name in enumerate(self.switches):
            for switched, picks in cells.items():
                other = cells.get(switched | {name})
                if name in switched or other is None:
                    continue
                for row in (picks != other).nonzero()[0].tolist():
                    masks[int(self.table.replayed[row])] |= 1 << bit
        return masks

    def _ties(self) -> list[int]:
        """One number an item: bit s is set where its best choices tie under side s's own rule."""
        ties = tied_items(self.ledger)
        return [bool(one) | bool(other) << 1 for one, other in zip(ties["lm_eval"], ties["inspect"], strict=True)]


def _rule(protocol: Protocol) -> dict[str, Any]:
    return {
        "normalisation": protocol.normalisation,
        "tie": protocol.tie_break,
        "atol": protocol.tie_atol,
        "readout": protocol.readout,
        "shots": protocol.num_fewshot,
    }


def _beginnings(ledger: Ledger) -> dict[tuple[str, str], str]:
    """What all prompts of a sub-task begin with, by side: where it is long, up to the end of a paragraph."""
    prompts: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for pair in ledger.items.pairs:
        for side, sample in zip(SIDES, pair, strict=True):
            prompts[side, sample.subject].append(sample.prompt)
    found = {}
    for name, texts in prompts.items():
        common = common_beginning(texts) if len(texts) > 1 else ""
        cut = common[: common.rfind("\n\n") + 2] if "\n\n" in common else ""
        if len(cut) >= _SHORTEST_PREFIX:
            found[name] = cut
    return found


def _references(question: str, choices: list[str]) -> References:
    """The texts that shapes refer to, longest first; very short ones are not worth it."""
    found = [(question, QUESTION), *((choice, -2 - place) for place, choice in enumerate(choices))]
    worth = [(text, reference) for text, reference in found if len(text) >= _SHORTEST_REFERENCE]
    return sorted(worth, key=lambda pair: (-len(pair[0]), -pair[1]))


def _parted(piece: str | int, content: str, reference: int) -> Iterable[str | int]:
    """A literal with every occurrence of `content` made a reference; anything else as it is."""
    if not isinstance(piece, str) or content not in piece:
        return [piece]
    parts: list[str | int] = []
    for place, literal in enumerate(piece.split(content)):
        if place:
            parts.append(reference)
        if literal:
            parts.append(literal)
    return parts


def _number(value: float | None) -> float | str | None:
    """A float that strict JSON has; the others by name."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("∞" if value > 0 else "−∞")


def chunks(rows: Sequence[list[Any]]) -> list[Sequence[list[Any]]]:
    """The rows in pieces that are read when one of their items is opened."""
    return [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]
