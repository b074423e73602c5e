"""The scoring engine where memory runs out: smaller packs, and what was done stays done.

A pack's size changes no score, so halving it is safe at any moment. The keys and values of the longest sequence are
needed whatever the pack: when a pack of `LEAST_TOKENS` does not fit either, that is said in one sentence.
"""

import warnings
from collections.abc import Sequence

import torch

from llm.errors import InputError
from llm.scoring.engine import OnScored, ScoringEngine
from llm.scoring.requests import ScoreRequest, TokenScores

LEAST_TOKENS = 64


class PatientEngine(ScoringEngine):
    """A `ScoringEngine` that halves its packs when an allocation fails and scores what is left again."""

    def score(
        self, requests: Sequence[ScoreRequest], *, top_k: int = 0, on_scored: OnScored | None = None
    ) -> list[TokenScores]:
        """Scores in request order, as the engine's.

        Raises:
            InputError: as the engine; or there is not enough memory for the smallest packs.
        """
        found: dict[int, TokenScores] = {}
        left = list(range(len(requests)))
        while True:
            places = left

            def take(indices: Sequence[int], scores: Sequence[TokenScores], places: list[int] = places) -> None:
                own = [places[index] for index in indices]
                found.update(zip(own, scores, strict=True))
                if on_scored is not None:
                    on_scored(own, scores)

            try:
                super().score([requests[index] for index in left], top_k=top_k, on_scored=take)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self._halve(error, requests)
            else:
                return [found[index] for index in range(len(requests))]
            left = [index for index in left if index not in found]

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
    text = str(error)
    return isinstance(error, RuntimeError) and ("can't allocate memory" in text or "out of memory" in text.lower())
