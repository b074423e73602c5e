"""Scores and generations to Inspect's records. No arithmetic on scores happens here."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessageAssistant,
    Logprob,
    Logprobs,
    ModelOutput,
    ModelUsage,
    StopReason,
    TopLogprob,
)

from llm.scoring.encoding import Split
from llm.scoring.requests import Generation, ScoreRequest, TokenScores
from providers.token_text import token_bytes, token_text

TopTokens = Sequence[tuple[int, float]]


@dataclass(frozen=True, kw_only=True)
class ContinuationScore:
    """One continuation as it stands in an output's metadata: nats, counts of scored tokens, how the text was cut.

    `num_truncated` tokens were cut from the left; `split` says how context and continuation were parted
    (`llm.scoring.encoding.Split`); `request_digest` names the ids that were scored; `unconditional_logprob` is that
    of the same continuation after the empty context, where asked for.
    """

    text: str
    logprob: float
    num_tokens: int
    is_greedy: bool
    num_truncated: int
    split: Split
    request_digest: str
    unconditional_logprob: float | None = None

    def as_metadata(self) -> dict[str, Any]:
        """A plain mapping, for a log."""
        return asdict(self)


def empty_output(model: str, *, num_tokens: int, metadata: dict[str, Any]) -> ModelOutput:
    """The output of a call that only scored its prompt: no text, the result in the metadata."""
    choice = ChatCompletionChoice(message=_assistant("", model), stop_reason="stop")
    return _output(model, [choice], num_prompt=num_tokens, num_new=0, metadata=metadata)


def overlong_output(model: str, *, num_tokens: int, max_length: int) -> ModelOutput:
    """The output of a prompt that does not fit and was not to be cut: `model_length`, no text, no scores."""
    choice = ChatCompletionChoice(message=_assistant("", model), stop_reason="model_length")
    reason = f"the prompt has {num_tokens} tokens and the context holds {max_length}"
    output = _output(model, [choice], num_prompt=num_tokens, num_new=0, metadata={"overlong": reason})
    output.error = reason
    return output


def generation_output(
    model: str,
    generations: Sequence[Generation],
    reasons: Sequence[StopReason],
    *,
    tokenizer: Any,
    num_prompt: int,
    with_logprobs: bool,
    prompt_logprobs: Logprobs | None = None,
    metadata: dict[str, Any] | None = None,
) -> ModelOutput:
    """One choice for each generation; `logprobs` are those of the tokens really chosen."""
    choices = [
        ChatCompletionChoice(
            message=_assistant(generation.text, model),
            stop_reason=reason,
            logprobs=_generated_logprobs(tokenizer, generation) if with_logprobs else None,
            prompt_logprobs=prompt_logprobs,
        )
        for generation, reason in zip(generations, reasons, strict=True)
    ]
    num_new = sum(len(generation.token_ids) for generation in generations)
    return _output(model, choices, num_prompt=num_prompt, num_new=num_new, metadata=metadata)


def prompt_logprobs(tokenizer: Any, requests: Sequence[ScoreRequest], scores: Sequence[TokenScores]) -> Logprobs:
    """One entry for each scored prompt token, in order, as Inspect's perplexity scorers read them."""
    content = []
    for request, score in zip(requests, scores, strict=True):
        tops: Sequence[TopTokens | None] = score.top or (None,) * len(score.logprobs)
        for token_id, logprob, top in zip(request.continuation_ids, score.logprobs, tops, strict=True):
            text = token_text(tokenizer, token_id)
            content.append(Logprob(token=text, logprob=logprob, top_logprobs=_top(tokenizer, top)))
    return Logprobs(content=content)


def _generated_logprobs(tokenizer: Any, generation: Generation) -> Logprobs:
    tops: Sequence[TopTokens | None] = generation.top or (None,) * len(generation.token_ids)
    return Logprobs(
        content=[
            Logprob(
                token=token_text(tokenizer, token_id),
                logprob=logprob,
                bytes=_bytes(tokenizer, token_id),
                top_logprobs=_top(tokenizer, top),
            )
            for token_id, logprob, top in zip(generation.token_ids, generation.logprobs, tops, strict=True)
        ]
    )


def _top(tokenizer: Any, top: TopTokens | None) -> list[TopLogprob] | None:
    if not top:
        return None
    return [
        TopLogprob(token=token_text(tokenizer, token_id), logprob=logprob, bytes=_bytes(tokenizer, token_id))
        for token_id, logprob in top
    ]


def _bytes(tokenizer: Any, token_id: int) -> list[int] | None:
    found = token_bytes(tokenizer, token_id)
    return None if found is None else list(found)


def _assistant(text: str, model: str) -> ChatMessageAssistant:
    return ChatMessageAssistant(content=text, model=model, source="generate")


def _output(
    model: str,
    choices: list[ChatCompletionChoice],
    *,
    num_prompt: int,
    num_new: int,
    metadata: dict[str, Any] | None,
) -> ModelOutput:
    usage = ModelUsage(input_tokens=num_prompt, output_tokens=num_new, total_tokens=num_prompt + num_new)
    return ModelOutput(
        model=model, choices=choices, usage=usage, input_context_tokens=num_prompt, metadata=metadata or None
    )
