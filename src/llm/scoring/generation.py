"""Text generation behind both doors: `generate` for a list of requests, batched or one at a time."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from llm.errors import InputError
from llm.scoring.decoding import DecodingBatch, Finished
from llm.scoring.plain_decoding import PlainDecoding
from llm.scoring.requests import Generation, GenerationRequest
from llm.scoring.rows import GenerationError
from llm.scoring.stops import Vocabulary
from llm.scoring.within_memory import is_out_of_memory

Progress = Callable[[int], None]


class Decoding(Protocol):
    """Requests in, one token for each row a step, finished generations out."""

    @property
    def busy(self) -> bool:
        """Whether any request is unfinished."""
        ...

    def submit(self, request: GenerationRequest) -> int:
        """Queue a request; its ticket."""
        ...

    def cancel(self, ticket: int) -> None:
        """Drop a request."""
        ...

    def step(self) -> Finished:
        """Go on by one token; what finished, by ticket."""
        ...


def generate(
    model: Any,
    tokenizer: Any,
    requests: Sequence[GenerationRequest],
    *,
    batch_size: int = 32,
    max_length: int | None = None,
    progress: Progress | None = None,
) -> list[Generation]:
    """Generations in request order; each one is its solo run's, tokens and logprobs alike.

    Args:
        model: a DecoderModel, or any module that maps ids (B, T) to logits (B, T, V): that one runs a row at a time.
        batch_size: rows decoded together; halved when memory runs out.
        max_length: the context in tokens, prompt and new ones together (the model's own by default).
        progress: called with the number of requests finished so far.

    Raises:
        InputError: a request cannot be met: an empty or overlong prompt, ids outside the vocabulary, settings out of
            range.
        GenerationError: the model's logits are not finite.
    """
    for request in requests:
        check(request, model, max_length=max_length)
    done: dict[int, Generation] = {}
    while len(done) < len(requests):
        todo = [index for index in range(len(requests)) if index not in done]
        decoding = make_decoding(model, tokenizer, batch_size=batch_size, max_length=max_length)
        try:
            for index, generation in _run(decoding, todo, requests):
                done[index] = generation
                if progress is not None:
                    progress(len(done))
        except (MemoryError, RuntimeError) as error:
            if batch_size == 1 or not is_out_of_memory(error):
                raise
            batch_size //= 2
    return [done[index] for index in range(len(requests))]


def _run(
    decoding: Decoding, todo: Sequence[int], requests: Sequence[GenerationRequest]
) -> Iterator[tuple[int, Generation]]:
    tickets = {decoding.submit(requests[index]): index for index in todo}
    while decoding.busy:
        for ticket, outcome in decoding.step():
            if isinstance(outcome, GenerationError):
                raise outcome
            yield tickets[ticket], outcome


def make_decoding(model: Any, tokenizer: Any, *, batch_size: int = 32, max_length: int | None = None) -> Decoding:
    """Batched decoding for a model that shows its layers, else one row at a time by whole forward passes."""
    vocabulary = Vocabulary(tokenizer)
    if hasattr(model, "hidden_states") and hasattr(model, "project"):
        return DecodingBatch(model, vocabulary, batch_size=batch_size, max_length=max_length)
    return PlainDecoding(model, vocabulary, max_length=max_length)


def check(request: GenerationRequest, model: Any, *, max_length: int | None = None) -> None:
    """Refuse a request that cannot be met.

    Raises:
        InputError: naming the setting, its value and what is allowed.
    """
    length, limit = len(request.prompt_ids), max_length or getattr(model, "max_length", None)
    if not length:
        raise InputError("the prompt to generate from has no tokens: give at least the prefix token (BOS or EOS)")
    if limit is not None and length > limit:
        raise InputError(
            f"the prompt has {length} tokens but the model's context holds {limit}: shorten it or cut it from the left"
        )
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    wrong = next((token for token in request.prompt_ids if token < 0 or (size is not None and token >= size)), None)
    if wrong is not None:
        raise InputError(f"the prompt holds token id {wrong}, outside the model's vocabulary of {size}")
    _check_settings(request)


def _check_settings(request: GenerationRequest) -> None:
    if isinstance(request.stop, str) or not all(isinstance(stop, str) for stop in request.stop):
        raise InputError(f"stop is {request.stop!r}: give a tuple of strings")
    if request.max_new_tokens < 0:
        raise InputError(f"max_new_tokens is {request.max_new_tokens}: it must be 0 or more")
    if not 0.0 <= request.temperature < float("inf"):
        raise InputError(f"temperature is {request.temperature}: it must be 0 (greedy) or a positive number")
    if not 0.0 < request.top_p <= 1.0:
        raise InputError(f"top_p is {request.top_p}: it must be above 0 and at most 1")
    if request.top_k < 0:
        raise InputError(f"top_k is {request.top_k}: it must be 0 (no limit) or a positive number of tokens")
    if request.num_top_logprobs < 0:
        raise InputError(f"num_top_logprobs is {request.num_top_logprobs}: it must be 0 or more")
