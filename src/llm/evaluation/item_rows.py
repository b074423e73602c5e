"""What a row of each benchmark must hold, and the item it becomes. Every refusal names the row's file and line."""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm.errors import InputError
from llm.evaluation.hub_layout import Row

MMLU_LABELS = ("A", "B", "C", "D")
MOST_CHARS = 4_000_000
"""Of one text: longer than any page, shorter than what would fill the memory."""
MOST_CHOICES = 26
"""Letters there are to name them by."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One multiple-choice question as the data has it.

    `subject` is the MMLU config name, "" where the benchmark has no subjects. `doc_id` is the row's 0-based number in
    its split of its subject (lm-eval's doc_id). `labels` are the data's own, `gold` an index into `choices`.
    """

    task: str
    subject: str
    doc_id: int
    question: str
    choices: tuple[str, ...]
    labels: tuple[str, ...]
    gold: int


def mmlu_item(row: Row, subject: str, doc_id: int) -> Item:
    """The item of an MMLU row; InputError names what is wrong with it."""
    choices = _choices(row, row.fields.get("choices"), "choices")
    if len(choices) != len(MMLU_LABELS):
        raise InputError(f"{row.where}: MMLU has 4 choices, this row has {len(choices)}")
    _check_choices(row, choices)
    answer = row.fields.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(choices):
        raise InputError(f"{row.where}: answer must be the whole number of a choice, 0 to 3, not {_shown(answer)}")
    return Item(
        task="mmlu",
        subject=subject,
        doc_id=doc_id,
        question=text_field(row, "question"),
        choices=choices,
        labels=MMLU_LABELS,
        gold=answer,
    )


def arc_item(row: Row, subject: str, doc_id: int) -> Item:
    """The item of an ARC row; InputError names what is wrong with it."""
    table = row.fields.get("choices")
    if not isinstance(table, Mapping):
        raise InputError(f"{row.where}: choices must be an object with text and label, not {_shown(table)}")
    choices = _choices(row, table.get("text"), "choices.text")
    labels = _choices(row, table.get("label"), "choices.label")
    if len(labels) != len(choices) or len(set(labels)) != len(labels):
        raise InputError(
            f"{row.where}: choices.label must name each of the {len(choices)} choices once, not {_shown(labels)}"
        )
    _check_choices(row, choices)
    key = row.fields.get("answerKey")
    if key not in labels:
        raise InputError(f"{row.where}: answerKey must be one of {', '.join(labels)}, not {_shown(key)}")
    return Item(
        task="arc_easy",
        subject=subject,
        doc_id=doc_id,
        question=text_field(row, "question"),
        choices=choices,
        labels=labels,
        gold=labels.index(str(key)),
    )


def text_field(row: Row, field: str) -> str:
    """A field that must hold text; InputError if it does not."""
    value = row.fields.get(field)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{row.where}: field {field!r} must be a text that is not empty, not {_shown(value)}")
    _check_text(row, value, field)
    return value


def _check_text(row: Row, text: str, field: str) -> None:
    if len(text) > MOST_CHARS:
        raise InputError(f"{row.where}: field {field!r} has {len(text)} characters; at most {MOST_CHARS} are read")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise InputError(
            f"{row.where}: field {field!r} holds U+{code:04X}, half a character that no text has"
        ) from error


def _check_choices(row: Row, choices: Sequence[str]) -> None:
    """Two or more, and not all the same: copies among them are the data's own affair."""
    if not 2 <= len(choices) <= MOST_CHOICES:
        raise InputError(f"{row.where}: {len(choices)} choices; a question has 2 to {MOST_CHOICES}")
    if len(set(choices)) == 1:
        raise InputError(
            f"{row.where}: all {len(choices)} choices are {_shown(choices[0])}: there is nothing to choose"
        )


def _shown(value: Any) -> str:
    """A value in a message, cut where it is long."""
    text = reprlib.repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _choices(row: Row, value: Any, field: str) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not value:
        raise InputError(f"{row.where}: field {field!r} must be a list of texts that is not empty, not {_shown(value)}")
    for text in value:
        if not isinstance(text, str) or not text.strip():
            raise InputError(
                f"{row.where}: field {field!r} holds {_shown(text)}: each must be a text that is not empty"
            )
        _check_text(row, text, field)
    return tuple(value)
