"""What is asked of a decoder and what comes back: plain frozen records, no torch."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreRequest:
    """Score `continuation_ids` after `context_ids` (token ids).

    The context holds at least one token: an empty text is given the prefix token before it gets here.
    """

    context_ids: tuple[int, ...]
    continuation_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.context_ids:
            raise ValueError("context_ids is empty: give at least the prefix token (BOS or EOS) as context")

    @property
    def digest(self) -> str:
        """16 hex digits of SHA-256 over the ids: what logs of either harness name a scored request by."""
        text = f"{','.join(map(str, self.context_ids))}|{','.join(map(str, self.continuation_ids))}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenScores:
    """The scores of one request's continuation, token by token.

    `logprobs` are nats, one a continuation token, never above 0. `is_greedy` is True when every token is the
    argmax of its position (True for an empty continuation). `top` holds, where asked for, the k most likely
    (token id, logprob) pairs of each position, best first; `ranks` the 0-based rank of the token itself.
    """

    logprobs: tuple[float, ...]
    is_greedy: bool
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    ranks: tuple[int, ...] = ()

    @property
    def total(self) -> float:
        """Sum of the token logprobs (nats, float64, in token order)."""
        return sum(self.logprobs, 0.0)


class Scorer(Protocol):
    """Anything that scores token sequences: the engine, the store in front of it, the micro-batching front."""

    def score(self, requests: Sequence[ScoreRequest], *, top_k: int = 0) -> list[TokenScores]:
        """Scores in request order; the same request gives the same bits in any company."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationRequest:
    """Continue `prompt_ids`; every setting belongs to this request alone, never to its batch.

    `stop` strings are matched on decoded text, the earliest match wins. `temperature` 0 is greedy.
    `num_top_logprobs` asks for that many alternatives beside each chosen token's logprob.
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    num_top_logprobs: int = 0
    skip_special_tokens: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """One generated continuation: ids as chosen, text cut before the stop string, and why it ended.

    `finish_reason` is "stop" (stop string or stop token), "length" (max_new_tokens) or "context" (model length).
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: Literal["stop", "length", "context"]
    logprobs: tuple[float, ...]
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
