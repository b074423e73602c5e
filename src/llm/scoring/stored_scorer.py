"""A scorer with a store in front of it."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llm.scoring.requests import Scorer, ScoreRequest, TokenScores

if TYPE_CHECKING:
    from llm.scoring.store import ScoreStore

OnScored = Callable[[Sequence[int], Sequence[TokenScores]], None]
Take = Callable[[Sequence[ScoreRequest], Sequence[TokenScores]], None]
Journal = Callable[[str, int], object]

BATCH_TOKENS = 16384
"""Tokens scored between two writes, at least, where the scorer itself does not report what it has done."""


@dataclass(kw_only=True)
class StoreStats:
    """Distinct requests of each call that were found (hits) and that were computed (misses)."""

    num_hits: int = 0
    num_misses: int = 0


class StoredScorer:
    """Answers from the store, computes what is missing and stores it as it is done: the same floats either way.

    A scorer with an `on_scored` argument stores batch by batch; any other one is called batch by batch. With `top_k`
    everything is computed, because alternatives are not stored; the scores are stored all the same. Scores that are
    not finite are never stored.

    Args:
        namespace: what makes scores comparable, such as `fingerprint|dtype|logits dtype|engine version`.
        journal: told of so many requests `found` in the store, `computed`, and, once they are on disk, `stored`.
    """

    def __init__(self, scorer: Scorer, store: "ScoreStore", namespace: str, *, journal: Journal | None = None) -> None:
        self.scorer = scorer
        self.store = store
        self.namespace = namespace
        self.journal: Journal = journal if journal is not None else _nowhere
        self.stats = StoreStats()
        self._reports = "on_scored" in inspect.signature(scorer.score).parameters

    def score(
        self, requests: Sequence[ScoreRequest], *, top_k: int = 0, on_scored: OnScored | None = None
    ) -> list[TokenScores]:
        """Scores in request order. `on_scored(indices, scores)` is told of requests as they are known."""
        places: dict[ScoreRequest, list[int]] = {}
        for index, request in enumerate(requests):
            places.setdefault(request, []).append(index)
        known: dict[ScoreRequest, TokenScores] = {}

        def take(done: Sequence[ScoreRequest], scores: Sequence[TokenScores]) -> None:
            known.update(zip(done, scores, strict=True))
            if on_scored is not None and done:
                indices = [index for request in done for index in places[request]]
                on_scored(indices, [known[request] for request in done for _ in places[request]])

        if not top_k:
            stored = zip(places, self.store.get(self.namespace, list(places)), strict=True)
            found = {request: scores for request, scores in stored if scores is not None}
            take(list(found), list(found.values()))
        missing = [request for request in places if request not in known]
        self.stats.num_hits += len(known)
        self.stats.num_misses += len(missing)
        self.journal("found", len(known))
        self._compute(missing, top_k, take)
        return [known[request] for request in requests]

    def _compute(self, requests: Sequence[ScoreRequest], top_k: int, take: Take) -> None:
        if self._reports and requests:
            scorer: Any = self.scorer
            scorer.score(
                requests,
                top_k=top_k,
                on_scored=lambda indices, scores: self._keep([requests[index] for index in indices], scores, take),
            )
        elif requests:
            for batch in _batches(requests):
                self._keep(batch, self.scorer.score(batch, top_k=top_k), take)

    def _keep(self, requests: Sequence[ScoreRequest], scores: Sequence[TokenScores], take: Take) -> None:
        """Store first, then pass on: what was reported is on disk."""
        self.journal("computed", len(requests))
        pairs = [
            (request, one)
            for request, one in zip(requests, scores, strict=True)
            if all(map(math.isfinite, one.logprobs))
        ]
        self.store.put(self.namespace, [request for request, _ in pairs], [one for _, one in pairs])
        self.journal("stored", len(requests))
        take(requests, scores)


def _nowhere(what: str, number: int) -> None:
    """A journal that keeps nothing."""


def _batches(requests: Sequence[ScoreRequest]) -> list[list[ScoreRequest]]:
    batches: list[list[ScoreRequest]] = [[]]
    size = 0
    for request in requests:
        if size >= BATCH_TOKENS:
            batches.append([])
            size = 0
        batches[-1].append(request)
        size += len(request.context_ids) + len(request.continuation_ids)
    return batches
