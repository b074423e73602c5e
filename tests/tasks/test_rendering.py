"""Inspect's wording: byte for byte what its own solver sends, with examples before it."""

import asyncio
import dataclasses
from typing import Any

import pytest
from inspect_ai.model import ChatMessageUser, ModelOutput
from inspect_ai.solver import TaskState, multiple_choice

from llm.errors import InputError
from llm.evaluation.data import Item, load_fewshot, load_items
from tasks.rendering import question_block, render_inspect, shots_text
from tasks.solver import generated_choice

BRACES = Item(
    task="arc_easy",
    subject="",
    doc_id=0,
    question='What does {"a": 1} hold, {x} or {0}?',
    choices=("{letters}", "{", "a }} brace"),
    labels=("1", "2", "3"),
    gold=2,
)


def shown_by_inspect(item: Item, solver: Any) -> str:
    """The user message that a solver of Inspect's puts to the model."""
    seen: list[str] = []

    async def answer(state: TaskState, **_: Any) -> TaskState:
        seen.append(state.user_prompt.text)
        state.output = ModelOutput.from_content("m", "ANSWER: A")
        return state

    state = TaskState(
        model="m",  # type: ignore[arg-type]
        sample_id=1,
        epoch=1,
        input=item.question,
        messages=[ChatMessageUser(content=item.question)],
        choices=list(item.choices),
        metadata={"subject": item.subject},
    )
    asyncio.run(solver(state, answer))
    return seen[0]


def test_the_native_text_literally() -> None:
    item = Item(
        task="mmlu",
        subject="astronomy",
        doc_id=3,
        question="Which planet is largest?",
        choices=("Mars", "Jupiter", "Venus", "Earth"),
        labels=("A", "B", "C", "D"),
        gold=1,
    )
    prompt = render_inspect(item, [item])
    block = (
        "Answer the following multiple choice question. The entire content of your response should be of the following "
        "format: 'ANSWER: $LETTER' (without quotes) where LETTER is one of A,B,C,D.\n\nWhich planet is largest?\n\n"
        "A) Mars\nB) Jupiter\nC) Venus\nD) Earth\n\nANSWER:"
    )
    assert prompt.context == f"{block} B\n\n{block}"
    assert prompt.continuations == (" A", " B", " C", " D")
    assert prompt.choice_texts == ("A", "B", "C", "D")


@pytest.mark.parametrize("task", ["mmlu", "arc_easy"])
def test_questions_are_what_inspects_own_solver_sends(task: str) -> None:
    for item in load_items(task, limit=3)[:9]:
        assert question_block(item) == shown_by_inspect(item, multiple_choice())


def test_p41_braces_pass_unchanged() -> None:
    block = question_block(BRACES)
    assert block == shown_by_inspect(BRACES, multiple_choice())
    for text in (BRACES.question, *BRACES.choices):
        assert text in block
    assert render_inspect(BRACES, [BRACES]).context == f"{block}\n\nANSWER: C\n\n{block}\n\nANSWER:"


def test_p41_braces_in_examples_pass_through_the_generating_solver(tmp_path: Any) -> None:
    import json

    folder = tmp_path / "allenai" / "ai2_arc"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: ARC-Easy\n  data_files:\n  - split: train\n    path: train.jsonl\n"
        "  - split: test\n    path: train.jsonl\n---\n"
    )
    row = {
        "id": "x",
        "question": BRACES.question,
        "choices": {"text": list(BRACES.choices), "label": list(BRACES.labels)},
        "answerKey": "3",
    }
    (folder / "train.jsonl").write_text(json.dumps(row) + "\n")
    shown = shown_by_inspect(BRACES, generated_choice("arc_easy", str(tmp_path), num_fewshot=1))
    assert shown == shots_text([BRACES]) + question_block(BRACES)


def test_p26_examples_are_the_first_dev_rows_in_file_order() -> None:
    shots = load_fewshot("mmlu", "sample", "anatomy") if "anatomy" in _sample_subjects() else _first_shots()
    text = shots_text(shots[:5])
    places = [text.index(shot.question) for shot in shots[:5]]
    assert places == sorted(places)
    assert text.count("\n\nANSWER: ") == 5


def _sample_subjects() -> tuple[str, ...]:
    from llm.evaluation.data import subjects

    return subjects()


def _first_shots() -> list[Item]:
    return load_fewshot("mmlu", "sample", _sample_subjects()[0])


def test_more_choices_than_letters_are_refused() -> None:
    many = dataclasses.replace(BRACES, choices=tuple(map(str, range(27))), labels=tuple(map(str, range(27))))
    with pytest.raises(InputError, match="27 choices"):
        render_inspect(many)
