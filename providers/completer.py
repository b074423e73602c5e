"""Answers completion requests with a loaded decoder: prompts to ids, ids to scores, and what follows them.

The prompts of a request are scored together (very many of them in parts), and with whatever else arrives meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import anyio

from llm.scoring.encoding import encode_texts, prefix_token_id
from llm.scoring.requests import Generation, GenerationRequest, ScoreRequest, TokenScores
from providers.api_errors import ApiError
from providers.completions_requests import DEFAULT_MAX_TOKENS, CompletionRequest
from providers.inspect_sessions import LoadedDecoder

T = TypeVar("T")

PART_TOKENS = 16384
"""Tokens of one call that are given to the scorer at a time."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One choice: the prompt's ids and text, the scores of its ids but the first, and what was generated after it.

    `scores` is None where none were asked for, `generation` where no token was.
    """

    prompt_ids: tuple[int, ...]
    prompt_text: str
    scores: TokenScores | None
    generation: Generation | None


class Completer:
    """The decoder as the API's calls use it; its methods raise ApiError for what cannot be answered."""

    def __init__(self, decoder: LoadedDecoder) -> None:
        from llm.scoring.stops import Vocabulary

        self.decoder = decoder
        self.tokenizer = decoder.tokenizer
        self.max_length = decoder.max_length
        self._vocabulary = Vocabulary(decoder.tokenizer)
        self._vocab_size = int(decoder.model.config.vocab_size)
        self._undecodable = self._vocabulary.undecodable(
            self._vocab_size, getattr(decoder.model, "num_decodable", None)
        )
        self._one_at_a_time = anyio.CapacityLimiter(1)  # a tokenizer is not safe in two threads at once

    # -- ids and text --------------------------------------------------------------------------------------------

    async def encode(self, texts: Sequence[str], *, special: bool = True) -> list[tuple[int, ...]]:
        """Ids of texts; `special` as the model reads a text from the start, with the tokenizer's own BOS if any."""

        def run() -> list[list[int]]:
            if special:
                return encode_texts(self.tokenizer, texts)
            encoded = self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
            return [[int(token) for token in ids] for ids in encoded]

        if not texts:
            return []
        found = await anyio.to_thread.run_sync(run, limiter=self._one_at_a_time)
        return [tuple(ids) for ids in found]

    async def decode(self, ids: Sequence[int], *, param: str = "tokens") -> str:
        """The text of ids, special tokens included."""
        self._check_ids(ids, param)
        return await anyio.to_thread.run_sync(self._vocabulary.decode, ids, limiter=self._one_at_a_time)

    # -- completions ---------------------------------------------------------------------------------------------

    async def complete(self, request: CompletionRequest) -> list[Completion]:
        """The choices of a request, prompt by prompt, `n` each."""
        prompts = await self._prompts(request)
        num_new = [self._room(request, ids) for ids, _ in prompts]
        scores = await self._score(request, [ids for ids, _ in prompts], num_new)
        wanted: list[Awaitable[Generation | None]] = [
            self._continue(request, ids, new, choice, score)
            for (ids, _), new, score in zip(prompts, num_new, scores, strict=True)
            for choice in range(request.n)
        ]
        generations = await _gather(wanted)
        return [
            Completion(
                prompt_ids=prompts[index // request.n][0],
                prompt_text=prompts[index // request.n][1],
                scores=_first(scores[index // request.n], len(prompts[index // request.n][0]) - 1),
                generation=generation,
            )
            for index, generation in enumerate(generations)
        ]

    async def _prompts(self, request: CompletionRequest) -> list[tuple[tuple[int, ...], str]]:
        """Each prompt's ids and text. An empty text is the prefix token; ids are taken verbatim."""
        texts = list(dict.fromkeys(prompt for prompt in request.prompts if isinstance(prompt, str)))
        encoded = dict(zip(texts, await self.encode(texts, special=request.add_special_tokens), strict=True))
        prompts = []
        for prompt in request.prompts:
            if isinstance(prompt, str):
                prompts.append((encoded[prompt] or (prefix_token_id(self.tokenizer),), prompt))
            else:
                self._check_ids(prompt, "prompt")
                prompts.append((prompt, await self.decode(prompt, param="prompt") if request.echo else ""))
        return prompts

    def _check_ids(self, ids: Sequence[int], param: str) -> None:
        most = max(ids, default=0)
        if most >= self._vocab_size:
            raise ApiError(
                400, f"{param} holds token id {most}: the model's ids end at {self._vocab_size - 1}", param=param
            )

    def _room(self, request: CompletionRequest, ids: Sequence[int]) -> int:
        """The number of new tokens; what was asked for must fit behind the prompt."""
        room = self.max_length - len(ids)
        if request.max_tokens is None and room >= 1:
            return min(DEFAULT_MAX_TOKENS, room)
        wanted = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
        if wanted > room and (wanted or room < -1):  # the last of the scored tokens needs no position of its own
            raise ApiError(
                400,
                f"the prompt has {len(ids)} tokens and {wanted} are to follow, but the model's context holds "
                f"{self.max_length}: shorten the prompt or max_tokens",
                param="prompt",
                code="context_length_exceeded",
            )
        return wanted

    async def _score(
        self, request: CompletionRequest, prompts: Sequence[tuple[int, ...]], num_new: Sequence[int]
    ) -> Sequence[TokenScores | None]:
        """Scores of every prompt's ids but the first; where one greedy token is to follow, of one id more: the most
        likely tokens at its place are what would be generated.
        """
        if not request.scores_prompt:
            return [None] * len(prompts)
        tails = [self._peek_ids(request, new) for new in num_new]
        asked = [
            ScoreRequest(context_ids=ids[:1], continuation_ids=(*ids[1:], *tail))
            for ids, tail in zip(prompts, tails, strict=True)
        ]
        top_k = request.logprobs or 0 if request.echo or any(tails) else 0
        if request.prompt_logprobs is not None or any(tails):
            top_k = max(1, top_k, request.prompt_logprobs or 0)
        scores: list[TokenScores] = []
        for part in _parts(asked):
            scores += await self.decoder.service.score(part, top_k=top_k)
        return scores

    def _peek_ids(self, request: CompletionRequest, num_new: int) -> tuple[int, ...]:
        """The id to append. The generator reads its logits in float32, so scores in a narrower dtype show no token."""
        one_greedy = num_new == 1 and request.temperature == 0 and self.decoder.logits_dtype == "float32"
        return (prefix_token_id(self.tokenizer),) if one_greedy else ()

    async def _continue(
        self, request: CompletionRequest, ids: tuple[int, ...], num_new: int, choice: int, scores: TokenScores | None
    ) -> Generation | None:
        if not num_new:
            return None
        asked = self._generation_request(request, ids, num_new, choice)
        if scores is not None and len(scores.logprobs) == len(ids):
            peeked = self._peeked(asked, scores.top[-1])
            if peeked is not None:
                return peeked
        return await self.decoder.service.generate(asked)

    def _peeked(self, asked: GenerationRequest, top: Sequence[tuple[int, float]]) -> Generation | None:
        """The one greedy token, if the most likely ones that were read show it."""
        from llm.scoring.rows import Row
        from llm.scoring.sampling import Choice

        known = [pair for pair in top if self._undecodable is None or not self._undecodable[pair[0]]]
        if not known or (asked.num_top_logprobs and len(known) < len(top)):
            return None
        row = Row(asked, ticket=0, vocabulary=self._vocabulary, max_length=self.max_length)
        token, logprob = known[0]
        return row.add(Choice(token=token, logprob=logprob, top=tuple(known[: asked.num_top_logprobs])))

    def _generation_request(
        self, request: CompletionRequest, ids: tuple[int, ...], num_new: int, choice: int
    ) -> GenerationRequest:
        """Each of the n choices has a seed of its own, counted from the one given."""
        special = [token for token, text in self._vocabulary.special.items() if text in request.stop]
        return GenerationRequest(
            prompt_ids=ids,
            max_new_tokens=num_new,
            stop=request.stop,
            stop_token_ids=self.decoder.stop_token_ids | request.stop_token_ids | frozenset(special),
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            seed=None if request.seed is None else request.seed + choice,
            num_top_logprobs=request.logprobs or 0,
            skip_special_tokens=request.skip_special_tokens,
        )


def _parts(requests: Sequence[ScoreRequest]) -> Iterator[list[ScoreRequest]]:
    """The requests in groups of about PART_TOKENS: what is being computed cannot be cancelled, what waits can."""
    part: list[ScoreRequest] = []
    size = 0
    for request in requests:
        length = len(request.context_ids) + len(request.continuation_ids)
        if part and size + length > PART_TOKENS:
            yield part
            part, size = [], 0
        part.append(request)
        size += length
    if part:
        yield part


def _first(scores: TokenScores | None, count: int) -> TokenScores | None:
    """The scores of the first `count` tokens."""
    if scores is None or len(scores.logprobs) == count:
        return scores
    return TokenScores(
        logprobs=scores.logprobs[:count],
        is_greedy=scores.is_greedy,
        top=scores.top[:count],
        ranks=scores.ranks[:count],
    )


async def _gather(calls: Sequence[Awaitable[T]]) -> list[T]:
    """Results of concurrent calls, in order; the first fault, or a cancellation, ends them all."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
