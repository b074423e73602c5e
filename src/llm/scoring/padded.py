"""The textbook way to score: sequences of unlike length in one batch, padded on the right, one forward pass a batch.

It shares no code with the engine but the log-softmax, so it shows what the engine's way of computing is worth in nats.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from llm.scoring.plain import logits_of, scores_from
from llm.scoring.readout import Head, LogitsDtype, read_out
from llm.scoring.requests import ScoreRequest, TokenScores

Ids = tuple[int, ...]


class PaddedScorer:
    """Scores requests in padded batches of `batch_size` sequences, longest first; equal inputs run once.

    Under a causal mask nothing before the padding sees it, so no attention mask is needed.
    """

    def __init__(self, model: nn.Module, *, logits_dtype: LogitsDtype = "float32", batch_size: int = 8) -> None:
        self.model = model
        self.logits_dtype: LogitsDtype = logits_dtype
        self.batch_size = batch_size

    def score(self, requests: Sequence[ScoreRequest], *, top_k: int = 0) -> list[TokenScores]:
        """Scores in request order."""
        asked: dict[Ids, list[int]] = {}
        scores = [TokenScores(logprobs=(), is_greedy=True)] * len(requests)
        for number, request in enumerate(requests):
            if request.continuation_ids:
                asked.setdefault((request.context_ids + request.continuation_ids)[:-1], []).append(number)
        for inputs, logits in self._forward(sorted(asked, key=len, reverse=True)):
            for number in asked[inputs]:
                scores[number] = self._read(logits, requests[number], top_k)
        return scores

    @torch.inference_mode()
    def _forward(self, inputs: Sequence[Ids]) -> Iterator[tuple[Ids, Tensor]]:
        """Each input with its logits (T, V), a batch at a time."""
        device = next(self.model.parameters()).device
        for start in range(0, len(inputs), self.batch_size):
            batch = inputs[start : start + self.batch_size]
            width = max(map(len, batch))
            padded = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in batch], device=device)
            for ids, logits in zip(batch, logits_of(self.model(padded)), strict=True):
                yield ids, logits[: len(ids)]

    @torch.inference_mode()
    def _read(self, logits: Tensor, request: ScoreRequest, top_k: int) -> TokenScores:
        scored = logits[len(request.context_ids) - 1 :]
        head = Head(
            project=lambda block, first, last: block[:, first:last],
            vocab_size=logits.shape[-1],
            logits_dtype=self.logits_dtype,
        )
        number = len(request.continuation_ids)
        found = read_out(head, scored, torch.arange(number), torch.tensor(request.continuation_ids), top_k=top_k)
        return scores_from(found, range(number))
