"""One scoring job with word of its progress, whatever scorer does it."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from llm.scoring.requests import Scorer, ScoreRequest, TokenScores

SLICE = 64

OnScored = Callable[[Sequence[int], Sequence[TokenScores]], object]


def score_reported(scorer: Scorer, requests: Sequence[ScoreRequest], on_scored: OnScored) -> list[TokenScores]:
    """Scores in request order; `on_scored(indices, scores)` hears of requests as they are done.

    A scorer that takes `on_scored` itself gets all requests in one call, so that it can share what they share; any
    other one gets slices of them, ordered by their ids.
    """
    if "on_scored" in inspect.signature(scorer.score).parameters:
        reporting: Any = scorer
        scores: list[TokenScores] = reporting.score(requests, on_scored=on_scored)
        return scores
    order = sorted(range(len(requests)), key=lambda i: requests[i].context_ids + requests[i].continuation_ids)
    found: dict[int, TokenScores] = {}
    for start in range(0, len(order), SLICE):
        piece = order[start : start + SLICE]
        scored = scorer.score([requests[index] for index in piece])
        found.update(zip(piece, scored, strict=True))
        on_scored(piece, scored)
    return [found[index] for index in range(len(requests))]
