"""Decoding for any module that maps ids (B, T) to logits (B, T, V): whole forward passes, one row at a time.

It asks nothing of the module, so it serves users' own decoders and is what the batched decoding is held to.
"""

from collections import deque
from typing import Any

import torch

from llm.models.products import full_precision
from llm.scoring.decoding import Finished
from llm.scoring.requests import Generation, GenerationRequest
from llm.scoring.rows import GenerationError, Row
from llm.scoring.sampling import choose
from llm.scoring.stops import Vocabulary


class PlainDecoding:
    """The decoding protocol without a cache: a step is one forward pass over the first row's whole sequence."""

    def __init__(self, model: Any, vocabulary: Vocabulary, *, max_length: int | None = None) -> None:
        self._model = model
        self._vocabulary = vocabulary
        limit = max_length or getattr(model, "max_length", None)
        self._max_length = limit if limit is not None else 1 << 62
        self._rows: deque[Row] = deque()
        self._next_ticket = 0

    @property
    def busy(self) -> bool:
        return bool(self._rows)

    def submit(self, request: GenerationRequest) -> int:
        ticket = self._next_ticket
        self._next_ticket += 1
        self._rows.append(Row(request, ticket=ticket, vocabulary=self._vocabulary, max_length=self._max_length))
        return ticket

    def cancel(self, ticket: int) -> None:
        self._rows = deque(row for row in self._rows if row.ticket != ticket)

    @torch.inference_mode()
    @full_precision()
    def step(self) -> Finished:
        row = self._rows[0]
        try:
            done = row.at_limit() or self._one_more(row)
        except GenerationError as fault:
            self._rows.popleft()
            return [(row.ticket, fault)]
        if done is None:
            return []
        self._rows.popleft()
        return [(row.ticket, done)]

    def _one_more(self, row: Row) -> Generation | None:
        device = next(self._model.parameters()).device
        output = self._model(torch.tensor([row.sequence], device=device))
        logits = (output if isinstance(output, torch.Tensor) else output.logits)[0, -1:]
        missing = self._vocabulary.undecodable(logits.shape[-1], getattr(self._model, "num_decodable", None))
        hidden = None if missing is None else torch.from_numpy(missing).to(device)
        return row.add(choose(logits, [row.chooser], hidden)[0])
