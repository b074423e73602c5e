"""The scorer for any module that maps ids (B, T) to logits (B, T, V): every distinct sequence runs alone.

It asks nothing of the module, so it serves users' own decoders and is the reference the engine is held to.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from llm.scoring.readout import Head, LogitsDtype, Readout, read_out
from llm.scoring.requests import Scorer, ScoreRequest, TokenScores


class PlainScorer:
    """Scores requests one distinct sequence at a time (batch 1), so company cannot change a score."""

    def __init__(self, model: nn.Module, *, logits_dtype: LogitsDtype = "float32") -> None:
        self.model = model
        self.logits_dtype: LogitsDtype = logits_dtype

    def score(self, requests: Sequence[ScoreRequest], *, top_k: int = 0) -> list[TokenScores]:
        """Scores in request order."""
        scored: dict[ScoreRequest, TokenScores] = {}
        for request in requests:
            if request not in scored:
                scored[request] = self._score_one(request, top_k)
        return [scored[request] for request in requests]

    @torch.inference_mode()
    def _score_one(self, request: ScoreRequest, top_k: int) -> TokenScores:
        if not request.continuation_ids:
            return TokenScores(logprobs=(), is_greedy=True)
        device = next(self.model.parameters()).device
        ids = torch.tensor([(request.context_ids + request.continuation_ids)[:-1]], device=device)
        logits = logits_of(self.model(ids))[0, len(request.context_ids) - 1 :]
        head = Head(
            project=lambda block, first, last: block[:, first:last],
            vocab_size=logits.shape[-1],
            logits_dtype=self.logits_dtype,
        )
        rows = torch.arange(len(request.continuation_ids))
        found = read_out(head, logits, rows, torch.tensor(request.continuation_ids), top_k=top_k)
        return scores_from(found, range(len(request.continuation_ids)))


def scores_from(found: Readout, numbers: Sequence[int]) -> TokenScores:
    """One request's scores: those pairs of a readout."""
    return TokenScores(
        logprobs=tuple(found.logprobs[number] for number in numbers),
        is_greedy=all(found.is_greedy[number] for number in numbers),
        top=tuple(found.top[number] for number in numbers) if found.top else (),
        ranks=tuple(found.ranks[number] for number in numbers) if found.ranks else (),
    )


def make_scorer(model: nn.Module, **settings: Any) -> Scorer:
    """The engine for a decoder that exposes its layers (`hidden_states`, `project`), else the plain scorer."""
    from llm.scoring.engine import ScoringEngine

    if hasattr(model, "hidden_states") and hasattr(model, "project"):
        return ScoringEngine(model, **settings)
    return PlainScorer(model, logits_dtype=settings.get("logits_dtype", "float32"))


def logits_of(output: Any) -> Tensor:
    """The logits of a module's answer: the tensor itself, or its `logits` field."""
    logits = output if isinstance(output, Tensor) else output.logits
    assert isinstance(logits, Tensor)
    return logits
