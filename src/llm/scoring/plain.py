"""The scorer for any module that maps ids (B, T) to logits (B, T, V): every distinct sequence runs alone.

It asks nothing of the module, so it serves users' own decoders and is the reference the engine is held to.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from llm.scoring.readout import Head, LogitsDtype, Readout, read_out
from llm.scoring.requests import Scorer, ScoreRequest, TokenScores

Ids = tuple[int, ...]


class PlainScorer:
    """Scores requests one distinct sequence at a time (batch 1), so company cannot change a score."""

    def __init__(self, model: nn.Module, *, logits_dtype: LogitsDtype = "float32") -> None:
        self.model: Any = model
        self.logits_dtype: LogitsDtype = logits_dtype

    @torch.inference_mode()
    def score(self, requests: Sequence[ScoreRequest], *, top_k: int = 0) -> list[TokenScores]:
        """Scores in request order; requests that differ in their last token alone share one pass."""
        scored: dict[ScoreRequest, TokenScores] = {}
        asked: dict[tuple[Ids, Ids], dict[ScoreRequest, None]] = {}
        for request in requests:
            if request.continuation_ids:
                asked.setdefault((request.context_ids, request.continuation_ids[:-1]), {})[request] = None
            else:
                scored[request] = TokenScores(logprobs=(), is_greedy=True)
        ordered = sorted(asked)
        for inputs, logits in zip(ordered, self._forward(ordered), strict=True):
            scored |= {request: self._read(logits, request, top_k) for request in asked[inputs]}
        return [scored[request] for request in requests]

    def _forward(self, inputs: Sequence[tuple[Ids, Ids]]) -> Iterator[Tensor]:
        """Logits (1 + T, V) after each context and after each of the T tokens that follow it."""
        for context, tail in inputs:
            yield logits_of(self.model(self._ids(context + tail)[None]))[0, len(context) - 1 :]

    def _ids(self, ids: Ids) -> Tensor:
        return torch.tensor(ids, device=next(self.model.parameters()).device)

    def _read(self, logits: Tensor, request: ScoreRequest, top_k: int) -> TokenScores:
        head = Head(
            project=lambda block, first, last: block[:, first:last],
            vocab_size=logits.shape[-1],
            logits_dtype=self.logits_dtype,
        )
        rows = torch.arange(len(request.continuation_ids))
        found = read_out(head, logits, rows, torch.tensor(request.continuation_ids), top_k=top_k)
        return scores_from(found, range(len(request.continuation_ids)))


class ContextScorer(PlainScorer):
    """The same for a module that can go on from a context (`prefill`, `extend`): every context runs once.

    A request always runs as its context and then its continuation, also when nothing shares the context.
    """

    def _forward(self, inputs: Sequence[tuple[Ids, Ids]]) -> Iterator[Tensor]:
        for context, pairs in groupby(inputs, key=lambda pair: pair[0]):
            first, state = self.model.prefill(self._ids(context))
            for _, tail in pairs:
                yield torch.cat([first, self.model.extend(state, self._ids(tail))]) if tail else first


def scores_from(found: Readout, numbers: Sequence[int]) -> TokenScores:
    """One request's scores: those pairs of a readout."""
    return TokenScores(
        logprobs=tuple(found.logprobs[number] for number in numbers),
        is_greedy=all(found.is_greedy[number] for number in numbers),
        top=tuple(found.top[number] for number in numbers) if found.top else (),
        ranks=tuple(found.ranks[number] for number in numbers) if found.ranks else (),
    )


def make_scorer(model: nn.Module, **settings: Any) -> Scorer:
    """The engine for a decoder that exposes its layers (`hidden_states`, `project`), else a context or a sequence at a
    time, as the module can.
    """
    from llm.scoring.within_memory import PatientEngine

    if hasattr(model, "hidden_states") and hasattr(model, "project"):
        return PatientEngine(model, **settings)
    plain = ContextScorer if hasattr(model, "prefill") and hasattr(model, "extend") else PlainScorer
    return plain(model, logits_dtype=settings.get("logits_dtype", "float32"))


def logits_of(output: Any) -> Tensor:
    """The logits of a module's answer: the tensor itself, or its `logits` field."""
    logits = output if isinstance(output, Tensor) else output.logits
    assert isinstance(logits, Tensor)
    return logits
