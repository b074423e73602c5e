"""The scoring engine where something goes wrong: memory that runs out, scores that are no numbers.

A pack's size changes no score, so halving it is safe at any moment. The keys and values of the longest sequence are
needed whatever the pack: when a pack of `LEAST_TOKENS` does not fit either, that is said in one sentence.
"""

import math
import warnings
from collections.abc import Sequence
from functools import cached_property

import torch

from llm.errors import InputError
from llm.scoring.engine import OnScored, ScoringEngine
from llm.scoring.requests import ScoreRequest, TokenScores

_NO_MEMORY = ("can't allocate memory", "out of memory")
LEAST_TOKENS = 64
MOST_GUILTY = 64
"""Requests scored alone before a model that gives no numbers is believed."""


class PatientEngine(ScoringEngine):
    """A `ScoringEngine` that halves its packs when an allocation fails and scores what is left again; and that scores
    alone whatever came out as no number, so that it is told of the requests that cause it and of no others.
    """

    def score(
        self, requests: Sequence[ScoreRequest], *, top_k: int = 0, on_scored: OnScored | None = None
    ) -> list[TokenScores]:
        """Scores in request order, as the engine's.

        Raises:
            InputError: as the engine; or there is not enough memory for the smallest packs.
        """
        answers = _Answers(requests, on_scored)
        while True:
            left = answers.left()
            try:
                super().score([requests[index] for index in left], top_k=top_k, on_scored=answers.taker(left))
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self._halve(error, requests)
            else:
                break
        self._score_suspects(answers, top_k)
        return answers.in_order()

    def _score_suspects(self, answers: "_Answers", top_k: int) -> None:
        """Each alone: keys that are no numbers spoil earlier queries of their own path, which others may share. Where
        the first `MOST_GUILTY` are all guilty, so are the others.
        """
        all_guilty = True
        for number, (request, scores) in enumerate(answers.suspects.items()):
            if number < MOST_GUILTY or not all_guilty:
                self._forget()
                (scores,) = super().score([request], top_k=top_k)
                all_guilty = all_guilty and has_nan(scores)
            answers.settle(request, scores)
        if answers.suspects:
            self._forget()

    def _forget(self) -> None:
        with self._lock:
            self._cache.clear()

    def _halve(self, error: Exception, requests: Sequence[ScoreRequest]) -> None:
        if self.pack_tokens <= LEAST_TOKENS:
            longest = max(len(request.context_ids) + len(request.continuation_ids) for request in requests)
            raise InputError(
                f"there is not enough memory to score a request of {longest} tokens, {LEAST_TOKENS} at a time: free "
                "some, or use a smaller model or dtype"
            ) from error
        self.pack_tokens = max(LEAST_TOKENS, self.pack_tokens // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        warnings.warn(
            f"memory ran out while scoring: packs now hold {self.pack_tokens} tokens, and scores stay the same",
            stacklevel=3,
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed; torch says so on a CPU only in the message."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _NO_MEMORY)


def has_nan(scores: TokenScores) -> bool:
    """Whether a logprob is no number; minus infinity is one."""
    return any(map(math.isnan, scores.logprobs))


class _Answers:
    """What is known of a call's requests. Scores that are no numbers are held back as `suspects`."""

    def __init__(self, requests: Sequence[ScoreRequest], on_scored: OnScored | None) -> None:
        self.requests = requests
        self.on_scored = on_scored
        self.found: dict[int, TokenScores] = {}
        self.suspects: dict[ScoreRequest, TokenScores] = {}

    def left(self) -> list[int]:
        """The indices of requests without scores."""
        return [n for n, request in enumerate(self.requests) if n not in self.found and request not in self.suspects]

    def taker(self, places: list[int]) -> OnScored:
        """What hears of scores by their places in `places`."""

        def take(indices: Sequence[int], scores: Sequence[TokenScores]) -> None:
            told = {}
            for index, one in zip(indices, scores, strict=True):
                if has_nan(one):
                    self.suspects[self.requests[places[index]]] = one
                else:
                    told[places[index]] = one
            self._tell(told)

        return take

    def settle(self, request: ScoreRequest, scores: TokenScores) -> None:
        """The last word on a suspect."""
        self._tell(dict.fromkeys(self.places[request], scores))

    @cached_property
    def places(self) -> dict[ScoreRequest, list[int]]:
        """The indices of each distinct request."""
        places: dict[ScoreRequest, list[int]] = {}
        for index, request in enumerate(self.requests):
            places.setdefault(request, []).append(index)
        return places

    def _tell(self, told: dict[int, TokenScores]) -> None:
        self.found.update(told)
        if told and self.on_scored is not None:
            self.on_scored(list(told), list(told.values()))

    def in_order(self) -> list[TokenScores]:
        return [self.found[index] for index in range(len(self.requests))]
