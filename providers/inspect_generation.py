"""Inspect's generation settings to a request for the decoder, and back to a stop reason."""

from collections.abc import Coroutine, Sequence
from typing import Any

import anyio
from inspect_ai.model import GenerateConfig, StopReason

from llm.scoring.requests import Generation, GenerationRequest
from providers.inspect_sessions import LoadedDecoder

_STOP_REASONS: dict[str, StopReason] = {"stop": "stop", "length": "max_tokens", "context": "model_length"}


def generation_request(
    decoder: LoadedDecoder, prompt_ids: tuple[int, ...], config: GenerateConfig, num_new: int, choice: int
) -> GenerationRequest:
    """The request of one of `num_choices` answers: each has a seed of its own, counted from the one given."""
    return GenerationRequest(
        prompt_ids=prompt_ids,
        max_new_tokens=num_new,
        stop=tuple(config.stop_seqs or ()),
        stop_token_ids=decoder.stop_token_ids,
        temperature=config.temperature or 0.0,
        top_p=config.top_p if config.top_p is not None else 1.0,
        top_k=config.top_k or 0,
        seed=None if config.seed is None else config.seed + choice,
        num_top_logprobs=(config.top_logprobs or 0) if config.logprobs else 0,
    )


def stop_reason(generation: Generation, *, cut: bool) -> StopReason:
    """Why a generation ended; `cut` says that the context allowed fewer tokens than were asked for."""
    if generation.finish_reason == "length" and cut:
        return "model_length"
    return _STOP_REASONS[generation.finish_reason]


async def gather(calls: Sequence[Coroutine[Any, Any, Generation]]) -> list[Generation]:
    """Results of concurrent calls, in order; of several failures the first in that order is raised, as it is."""
    outcomes: dict[int, Generation | Exception] = {}

    async def run(index: int) -> None:
        try:
            outcomes[index] = await calls[index]
        except Exception as error:  # a task group would wrap it
            outcomes[index] = error

    async with anyio.create_task_group() as group:
        for index in range(len(calls)):
            group.start_soon(run, index)
    return [_result(outcomes[index]) for index in range(len(calls))]


def _result(outcome: Generation | Exception) -> Generation:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
