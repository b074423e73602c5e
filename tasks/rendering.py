"""Items in Inspect's own words: its single-answer template and its `A) …` options, ready for scoring."""

from collections.abc import Sequence

from inspect_ai.solver import MultipleChoiceTemplate

from llm.errors import InputError
from llm.evaluation.data import Item
from llm.evaluation.prompts import Prompt

ANSWER = "ANSWER:"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_GAP = "\n\n"


def letters(item: Item) -> tuple[str, ...]:
    """The letter of each choice, in the data's order, whatever labels the data has.

    Raises:
        InputError: more choices than letters.
    """
    if len(item.choices) > len(_LETTERS):
        raise InputError(f"an item has {len(item.choices)} choices: letters name at most {len(_LETTERS)}")
    return tuple(_LETTERS[: len(item.choices)])


def question_block(item: Item) -> str:
    """`MultipleChoiceTemplate.SINGLE_ANSWER` filled in as `multiple_choice()` fills it
    (inspect_ai solver/_multiple_choice.py:58-78); braces in the item's text pass unchanged.
    """
    names = letters(item)
    options = "\n".join(f"{name}) {choice}" for name, choice in zip(names, item.choices, strict=True))
    template = MultipleChoiceTemplate.SINGLE_ANSWER.value
    return template.format(letters=",".join(names), question=item.question, choices=options)


def shots_text(shots: Sequence[Item]) -> str:
    """The few-shot block: each example's question with its answer, every one followed by a blank line."""
    return "".join(f"{_answered(shot)} {letters(shot)[shot.gold]}{_GAP}" for shot in shots)


def render_inspect(item: Item, shots: Sequence[Item] = ()) -> Prompt:
    """The item as scored under Inspect's template: examples, question, a blank line and `ANSWER:`; a choice's
    continuation is its letter after a space.
    """
    names = letters(item)
    return Prompt(
        context=shots_text(shots) + _answered(item),
        continuations=tuple(f" {name}" for name in names),
        choice_texts=names,
    )


def _answered(item: Item) -> str:
    """The question up to where its answer's letter goes."""
    return question_block(item) + _GAP + ANSWER
