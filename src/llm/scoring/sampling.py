"""Choosing the next token of each row from its logits, with that row's own settings and random stream."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from llm.scoring.requests import GenerationRequest

NUCLEUS_GUESS = 1024
"""How many of the most likely tokens are sorted first for top_p; all of them where these do not suffice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A chosen token, its logprob (nats, before temperature) and the asked number of alternatives, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(kw_only=True)
class Chooser:
    """One request's way of choosing. A seed gives the same draws in any company; None takes fresh entropy."""

    request: GenerationRequest
    _stream: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        seed = self.request.seed
        self._stream = np.random.Generator(np.random.Philox(None if seed is None else seed % 2**64))

    @property
    def is_greedy(self) -> bool:
        return self.request.temperature == 0.0

    def draw(self, logprobs: Tensor) -> int:
        """A token drawn from logprobs (V,): temperature first, then top_k, then top_p."""
        request = self.request
        if not request.top_k and request.top_p >= 1.0:
            return self._pick(np.cumsum(self._weights(logprobs, logprobs.max())))
        values, ids = logprobs.topk(min(request.top_k or NUCLEUS_GUESS, logprobs.shape[0]))
        sums = np.cumsum(self._weights(values, values[0]))
        if request.top_p >= 1.0:
            return int(ids[self._pick(sums)])
        mass = sums[-1] if request.top_k else self._weights(logprobs, values[0]).sum()
        if sums[-1] < request.top_p * mass:
            values, ids = logprobs.sort(descending=True, stable=True)
            sums = np.cumsum(self._weights(values, values[0]))
        nucleus = int(np.searchsorted(sums, request.top_p * mass)) + 1
        return int(ids[self._pick(sums[:nucleus])])

    def _weights(self, logprobs: Tensor, peak: Tensor) -> np.ndarray:
        """Unnormalised probabilities at the request's temperature, float64."""
        return np.exp((logprobs - peak).double().cpu().numpy() / self.request.temperature)

    def _pick(self, sums: np.ndarray) -> int:
        """An index drawn in proportion to the steps of these cumulative sums; one without weight is never drawn."""
        target = min(self._stream.random() * sums[-1], np.nextafter(sums[-1], 0.0))
        return int(np.searchsorted(sums, target, side="right"))


def choose(logits: Tensor, choosers: Sequence[Chooser], undecodable: Tensor | None) -> list[Choice]:
    """One choice a row of logits (R, V); rows without a chooser are ignored.

    Log-softmax is taken in float32 over the whole vocabulary; `undecodable` (V,) marks ids that are never chosen. A
    row whose logits are not finite gives a NaN logprob.
    """
    logprobs = logits.float().log_softmax(dim=-1)
    allowed = logprobs if undecodable is None else logprobs.masked_fill(undecodable, -torch.inf)
    tokens = _best(allowed)
    own = logprobs[range(len(tokens)), tokens].tolist()
    choices = []
    for row, chooser in enumerate(choosers):
        token, logprob = tokens[row], own[row]
        if not chooser.is_greedy and logprob == logprob:
            token = chooser.draw(allowed[row])
            logprob = float(logprobs[row, token])
        top = _alternatives(allowed[row], chooser.request.num_top_logprobs)
        choices.append(Choice(token=token, logprob=min(logprob, 0.0) if logprob == logprob else logprob, top=top))
    return choices


def _best(logprobs: Tensor) -> list[int]:
    """Each row's most likely token, the first of equals. NumPy's search is the faster one by an order of magnitude."""
    if logprobs.device.type == "cpu":
        return [int(token) for token in logprobs.numpy().argmax(axis=-1)]
    return [int(token) for token in logprobs.argmax(dim=-1)]


def _alternatives(logprobs: Tensor, count: int) -> tuple[tuple[int, float], ...]:
    if not count:
        return ()
    values, ids = logprobs.topk(min(count, logprobs.shape[0]))
    return tuple(zip(ids.tolist(), values.clamp(max=0.0).tolist(), strict=True))
