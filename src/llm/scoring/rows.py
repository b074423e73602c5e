"""One request on its way through a decoding batch."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from llm.scoring.requests import Generation, GenerationRequest
from llm.scoring.sampling import Choice, Chooser
from llm.scoring.stops import GrowingText, Vocabulary


class GenerationError(RuntimeError):
    """The model failed on this one request: its logits are not finite numbers. Other requests are untouched."""


class Row:
    """A request, its place in the key/value tiles and what has been generated for it.

    `room` is how many new tokens the model's context leaves; `num_cached` how many positions have their keys and
    values in `tiles`, and `is_sound` whether those are all finite.
    """

    def __init__(self, request: GenerationRequest, *, ticket: int, vocabulary: Vocabulary, max_length: int) -> None:
        self.request = request
        self.ticket = ticket
        self.prompt = np.array(request.prompt_ids, dtype=np.int64)
        self.room = max_length - len(self.prompt)
        self.chooser = Chooser(request=request)
        self.tiles: list[int] = []
        self.num_cached = 0
        self.is_sound = True
        self._special = vocabulary.special
        self._text = GrowingText(vocabulary, request.prompt_ids, skip_special_tokens=request.skip_special_tokens)
        self._said = Said()

    @property
    def longest(self) -> int:
        """Tokens of prompt and answer together, at most."""
        return len(self.prompt) + min(self.request.max_new_tokens, self.room)

    @property
    def last_token(self) -> int:
        return self._said.token_ids[-1]

    @property
    def sequence(self) -> list[int]:
        """Prompt and answer so far."""
        return [*self.request.prompt_ids, *self._said.token_ids]

    def add(self, choice: Choice) -> Generation | None:
        """Take a chosen token; the finished generation if it ends the row.

        Raises:
            GenerationError: the choice was made from logits that are not finite.
        """
        if choice.logprob != choice.logprob:
            raise GenerationError(
                f"the model's logits are not finite numbers after {len(self.prompt)} prompt and "
                f"{len(self._said.token_ids)} new tokens"
            )
        self._said.add(choice)
        if choice.token in self.request.stop_token_ids:
            if choice.token not in self._special:  # a word that ends the answer is part of it, as behind HFLM
                self._text.add(choice.token)
            return self._finish("stop", self._text.find(self.request.stop))
        self._text.add(choice.token)
        if (cut := self._text.find(self.request.stop)) is not None:
            return self._finish("stop", cut)
        return self.at_limit()

    def at_limit(self) -> Generation | None:
        """The finished generation if no further token is wanted or fits."""
        if len(self._said.token_ids) >= self.request.max_new_tokens:
            return self._finish("length")
        return self._finish("context") if len(self._said.token_ids) >= self.room else None

    def _finish(self, reason: Literal["stop", "length", "context"], cut: int | None = None) -> Generation:
        return Generation(
            token_ids=tuple(self._said.token_ids),
            text=self._text.text(cut),
            finish_reason=reason,
            logprobs=tuple(self._said.logprobs),
            top=tuple(self._said.top),
        )


@dataclass(kw_only=True)
class Said:
    """Tokens chosen so far, with their logprobs and, where asked for, their alternatives."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[tuple[tuple[int, float], ...]] = field(default_factory=list)

    def add(self, choice: Choice) -> None:
        self.token_ids.append(choice.token)
        self.logprobs.append(choice.logprob)
        if choice.top:
            self.top.append(choice.top)


def common_length(a: np.ndarray, b: np.ndarray) -> int:
    """How many leading tokens are equal."""
    size = min(len(a), len(b))
    different = np.flatnonzero(a[:size] != b[:size])
    return int(different[0]) if len(different) else size
