"""Likelihoods of choices from any provider that returns prompt log-probabilities, one call a choice.

The provider scores the whole of context + continuation and the last tokens are the continuation's. With a tokenizer
at hand the ids are made here, by the same function as everywhere, and sent as ids; without one the text is sent and
the returned tokens' own texts show where the continuation begins.
"""

import re
from collections.abc import Sequence
from typing import Any

from inspect_ai.model import ChatMessageUser, GenerateConfig, Logprob, Model, ModelOutput

from llm.errors import InputError
from llm.scoring.encoding import encode_pairs

_UNREADABLE = re.compile("\N{REPLACEMENT CHARACTER}+")
POSITIVE = 1e-6
"""A value above this many nats is no log-probability; between it and 0 it is rounding and counts as 0."""


class ChoiceCaller:
    """Asks a model for continuations one by one; `tokenizer` is None where the provider is to cut the text itself."""

    def __init__(self, model: Model, tokenizer: Any = None) -> None:
        self.model = model
        self.tokenizer = tokenizer

    async def score(
        self, context: str, continuations: Sequence[str], *, unconditional: bool = False
    ) -> list[dict[str, Any]]:
        """One mapping a continuation, with the fields of `providers.inspect_outputs.ContinuationScore`.

        Raises:
            InputError: the provider returns no prompt log-probabilities or not enough of them, or the continuation's
                tokens cannot be told from the text.
        """
        results = []
        for text in continuations:
            result = await self._score_one(context, text)
            if unconditional:
                result["unconditional_logprob"] = (await self._score_one("", text))["logprob"]
            results.append(result)
        return results

    async def _score_one(self, context: str, continuation: str) -> dict[str, Any]:
        if self.tokenizer is not None:
            return await self._score_ids(context, continuation)
        if not context:
            raise InputError("the likelihood after an empty context needs the token ids: give -T tokenizer=…")
        output = await self._ask(ChatMessageUser(content=context + continuation))
        found = self._prompt_logprobs(output)
        kept = context.rstrip()
        tail, split = _tail(found, context[len(kept) :] + continuation)
        return _result(continuation, tail, split, output, digest=None)

    async def _score_ids(self, context: str, continuation: str) -> dict[str, Any]:
        pair = encode_pairs(self.tokenizer, [(context, continuation)])[0]
        request = pair.request
        ids = [*request.context_ids, *request.continuation_ids]
        # some text stands beside the ids: providers that read only the ids still refuse an empty message
        message = ChatMessageUser(content=context + continuation, metadata={"prompt_token_ids": ids})
        output = await self._ask(message)
        found = self._prompt_logprobs(output)
        wanted = len(request.continuation_ids)
        if len(found) < wanted:
            raise InputError(f"{self.model} returned {len(found)} prompt log-probabilities for {len(ids)} token ids")
        return _result(continuation, found[len(found) - wanted :], pair.split, output, digest=request.digest)

    async def _ask(self, message: ChatMessageUser) -> ModelOutput:
        return await self.model.generate([message], config=GenerateConfig(prompt_logprobs=1))

    def _prompt_logprobs(self, output: ModelOutput) -> list[Logprob]:
        if output.choices and output.choices[0].stop_reason == "model_length":
            raise InputError(f"{self.model} refuses a prompt as longer than its context: {output.error or 'no reason'}")
        found = output.choices[0].prompt_logprobs if output.choices else None
        if found is None or not found.content:
            raise InputError(
                f"{self.model} returns no prompt log-probabilities, which the likelihood of a choice needs: use "
                "decoder/…, vllm-completions/… or openai-api-completions/…, or -T readout=generate"
            )
        return found.content


def as_logprob(value: float) -> float:
    """The value as a log-probability, never above 0.

    Raises:
        InputError: it is above 1e-6, so it is none.
    """
    if value > POSITIVE:
        raise InputError(f"a provider returned {value} where a log-probability stands: not a log-probability")
    return min(0.0, value)


def _tail(found: Sequence[Logprob], text: str) -> tuple[Sequence[Logprob], str]:
    """The last entries, those whose tokens spell `text`; "merged" where the first of them begins before it.

    Tokens that are parts of characters show as U+FFFD, so a run of n of those stands for 1 to n such characters.
    """
    spelled = ""
    for start in range(len(found) - 1, -1, -1):
        spelled = found[start].token + spelled
        pattern = _UNREADABLE.sub(lambda run: rf"[^\x00-\x7f]{{1,{len(run[0])}}}", re.escape(spelled))
        if re.fullmatch(pattern, text):
            return found[start:], "joint"
        if len(_UNREADABLE.sub("", spelled)) > len(text):
            break
    if spelled.endswith(text):
        return found[start:], "merged"
    raise InputError(
        f"the provider's tokens {spelled!r} do not spell the continuation {text!r}: give the model's tokenizer, "
        "-T tokenizer=…"
    )


def _result(
    text: str, tail: Sequence[Logprob], split: str, output: ModelOutput, *, digest: str | None
) -> dict[str, Any]:
    logprobs = [as_logprob(entry.logprob) for entry in tail]
    return {
        "text": text,
        "logprob": sum(logprobs, 0.0),
        "num_tokens": len(logprobs),
        "is_greedy": None,
        "num_truncated": 0,
        "split": split,
        "request_digest": digest,
        "unconditional_logprob": None,
        "windowed": bool((output.metadata or {}).get("windowed")),
    }
