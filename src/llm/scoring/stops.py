"""The text of a growing token sequence, and where its stop strings begin.

Text is what the tokenizer's decode adds: decode(prompt + new) less decode(prompt), so a leading space stays and a
character whose bytes are not complete yet is held back.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

CONTEXT = 16
"""Prompt tokens decoded in front of the new ones: enough for any decoder to know that it is not at the start."""
REPLACEMENT = "\ufffd"


def end_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The ids that end a generation: the tokenizer's EOS and the model's own, from its (generation) config."""
    own = getattr(model, "eos_token_ids", ())
    return frozenset(own if tokenizer.eos_token_id is None else (*own, tokenizer.eos_token_id))


class Vocabulary:
    """What generation asks of a tokenizer: decoding, and which tokens are special."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._ids: np.ndarray | None = None
        if hasattr(tokenizer, "get_vocab"):
            self._ids = np.fromiter(tokenizer.get_vocab().values(), dtype=np.int64)
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self.special = {token: str(content) for token, content in added.items() if content.special}
        for token in getattr(tokenizer, "all_special_ids", ()):
            if token not in self.special:
                self.special[token] = self.decode([token])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included, nothing cleaned up."""
        text = self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def undecodable(self, num_logits: int, num_decodable: int | None = None) -> np.ndarray | None:
        """Which of the ids 0 … num_logits - 1 have no token (V,), by the tokenizer's own list and by
        `num_decodable`; None if all have one.
        """
        missing = np.full(num_logits, self._ids is not None)
        if self._ids is not None:
            missing[self._ids[self._ids < num_logits]] = False
        if num_decodable is not None:
            missing[num_decodable:] = True
        return missing if missing.any() else None


class GrowingText:
    """Text of the tokens added so far after a prompt.

    With `skip_special_tokens` special tokens leave no text, but a stop string that names one still finds it.
    """

    def __init__(self, vocabulary: Vocabulary, prompt_ids: Sequence[int], *, skip_special_tokens: bool) -> None:
        self._decode = vocabulary.decode
        self._hidden = vocabulary.special if skip_special_tokens else {}
        self._start = [token for token in prompt_ids[-4 * CONTEXT :] if token not in self._hidden][-CONTEXT:]
        self._anchor = self._start
        self._visible: list[int] = []
        self._queue: list[int] = []  # not looked at yet
        self._pending: list[int] = []  # no whole character yet
        self._marks: list[tuple[int, str]] = []  # (characters of text before it, a hidden token's own text)
        self._text = ""

    def add(self, token: int) -> None:
        self._queue.append(token)
        if token not in self._hidden:
            self._visible.append(token)

    def text(self, cut: int | None = None) -> str:
        """All of the text, an incomplete character at its end as the replacement character; or the part before a
        stop string that `find` has found at `cut`.
        """
        return self._added(self._start, self._visible) if cut is None else self._text[:cut]

    def find(self, stops: Sequence[str]) -> int | None:
        """Where in the text the earliest of the stop strings begins, if one is there; empty ones are ignored.

        An incomplete character at the end is not looked at.
        """
        wanted = [stop for stop in stops if stop]
        if not wanted:
            return None
        while self._queue:
            self._advance(self._queue.pop(0))
        starts = [start for stop in wanted if (start := self._text.find(stop)) >= 0]
        if self._marks:
            marked = _with_marks(self._text, self._marks)
            starts += [_unmarked(start, self._marks) for stop in wanted if (start := marked.find(stop)) >= 0]
        return min(starts, default=None)

    def _advance(self, token: int) -> None:
        if token in self._hidden:
            self._marks.append((len(self._text), self._hidden[token]))
            return
        self._pending.append(token)
        fresh = self._added(self._anchor, self._pending)
        if fresh and not fresh.endswith(REPLACEMENT):
            self._text += fresh
            self._anchor, self._pending = self._pending[-CONTEXT:], []

    def _added(self, before_ids: Sequence[int], ids: Sequence[int]) -> str:
        """The text that ids add to what stands before them."""
        before = self._decode(before_ids)
        after = self._decode([*before_ids, *ids])
        if after.startswith(before):
            return after[len(before) :]
        same = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(after))
        return after[same:]


def _with_marks(text: str, marks: Sequence[tuple[int, str]]) -> str:
    parts, done = [], 0
    for at, content in marks:
        parts += [text[done:at], content]
        done = at
    return "".join([*parts, text[done:]])


def _unmarked(position: int, marks: Sequence[tuple[int, str]]) -> int:
    """The place in the plain text that `position` in the marked text falls on."""
    added = 0
    for at, content in marks:
        begin = at + added
        if position < begin:
            break
        if position < begin + len(content):
            return at
        added += len(content)
    return position - added
