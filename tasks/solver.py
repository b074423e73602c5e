"""Solvers: the likelihood of every choice, in one call where the provider can and choice by choice where it cannot;
and Inspect's own generated answer with few-shot examples before it.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

from inspect_ai.model import ChatCompletionChoice, ChatMessageAssistant, Model, ModelOutput, get_model
from inspect_ai.solver import Generate, MultipleChoiceTemplate, Solver, TaskState, multiple_choice, solver

from llm.errors import InputError
from providers.inspect_errors import input_errors
from tasks.choice_calls import ChoiceCaller
from tasks.rendering import shots_text
from tasks.samples import first_shots

Calls = Literal["auto", "one", "each"]


@solver
def choice_likelihoods(unconditional: bool = False, tokenizer: str | None = None, calls: Calls = "auto") -> Solver:
    """Score each of the sample's `metadata["continuations"]` after its input.

    The result stands in the output's `metadata["continuations"]`, one mapping a choice in the data's order. `calls`:
    "one" call an item (this project's provider), "each" choice by itself (any provider that returns prompt
    log-probabilities), or what the provider can. `unconditional` adds each continuation's score after the empty
    context. `tokenizer` names one (as `llm.models.load_tokenizer` takes it) whose ids are sent instead of text.
    """

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        model = get_model()
        continuations = [str(text) for text in state.metadata["continuations"]]
        if calls == "one" or (calls == "auto" and getattr(model.api, "scores_continuations", False)):
            body = {"continuations": continuations} | ({"unconditional": True} if unconditional else {})
            return await generate(state, extra_body=body)
        with input_errors():
            caller = ChoiceCaller(model, _tokenizer(tokenizer))
            results = await caller.score(state.input_text, continuations, unconditional=unconditional)
        return _with_results(state, model, results)

    return solve


@solver
def generated_choice(task: str, data: str, num_fewshot: int = 0) -> Solver:
    """Inspect's `multiple_choice()`, its wording preceded by the subject's first examples in the same wording."""

    @cache
    def own(subject: str) -> Solver:
        shots = shots_text(first_shots(task, data, subject, num_fewshot))
        plain = shots.replace("{", "{{").replace("}", "}}")  # the examples' own braces are no fields
        return multiple_choice(template=plain + MultipleChoiceTemplate.SINGLE_ANSWER.value)

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        with input_errors():
            chosen = own(str(state.metadata["subject"]))
        return await chosen(state, generate)

    return solve


def _with_results(state: TaskState, model: Model, results: Sequence[dict[str, Any]]) -> TaskState:
    message = ChatMessageAssistant(content="", model=model.name, source="generate")
    state.output = ModelOutput(
        model=model.name,
        choices=[ChatCompletionChoice(message=message, stop_reason="stop")],
        metadata={"continuations": list(results)},
    )
    state.messages.append(message)
    return state


@cache
def _tokenizer(ref: str | None) -> Any:
    if ref is None:
        return None
    if not isinstance(ref, str):
        raise InputError(f"tokenizer is {ref!r}: name a model or a folder")
    from llm.models import load_tokenizer

    return load_tokenizer(ref)
