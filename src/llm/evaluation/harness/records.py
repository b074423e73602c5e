"""What the LM hands on beside lm-eval's own answers: token counts with each score, and the trace of what was scored."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

from llm.scoring.requests import ScoreRequest, TokenScores


class Loglikelihood(tuple[float, bool]):
    """lm-eval's (loglikelihood, is_greedy) that also knows how many tokens were scored."""

    num_tokens: int

    def __new__(cls, pair: tuple[float, bool], num_tokens: int = 0) -> Self:
        made = super().__new__(cls, pair)
        made.num_tokens = num_tokens
        return made


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedRequest:
    """What was scored for one request of lm-eval (one window of it, where it rolls), to the token.

    `num_truncated` tokens were cut from the left to fit the model. `split` says how the text was cut into ids
    (`llm.scoring.encoding.EncodedPair`); a rolling window is always "joint". `index` is the request's place in its
    call, `task` and `doc_id` are lm-eval's own.
    """

    kind: Literal["loglikelihood", "loglikelihood_rolling"]
    index: int
    task: str | None
    doc_id: int | None
    context: str
    continuation: str
    request: ScoreRequest
    scores: TokenScores
    num_truncated: int
    split: str


Trace = Callable[[TracedRequest], object] | list[TracedRequest]
