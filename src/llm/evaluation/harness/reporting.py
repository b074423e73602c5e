"""One scoring job with word of its progress, whatever scorer does it."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from llm.scoring.requests import Scorer, ScoreRequest, TokenScores

SLICE = 64


def score_reported(
    scorer: Scorer, requests: Sequence[ScoreRequest], report: Callable[[int], object]
) -> list[TokenScores]:
    """Scores in request order; `report(n)` hears of each n requests done.

    A scorer that takes `on_scored` gets all requests in one call, so that it can share what they share; any other one
    gets slices of them, ordered by their ids.
    """
    if "on_scored" in inspect.signature(scorer.score).parameters:
        reporting: Any = scorer
        scores: list[TokenScores] = reporting.score(requests, on_scored=lambda indices, _: report(len(indices)))
        return scores
    order = sorted(range(len(requests)), key=lambda i: requests[i].context_ids + requests[i].continuation_ids)
    found: dict[int, TokenScores] = {}
    for start in range(0, len(order), SLICE):
        piece = order[start : start + SLICE]
        found.update(zip(piece, scorer.score([requests[index] for index in piece]), strict=True))
        report(len(piece))
    return [found[index] for index in range(len(requests))]
