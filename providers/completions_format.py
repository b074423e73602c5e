"""Completions as the API writes them: OpenAI's legacy log-probabilities and vLLM's prompt log-probabilities.

Floats go out as they are, never rounded.
"""

import math
from collections.abc import Sequence
from typing import Any

from providers.api_errors import ApiError
from providers.completer import Completion
from providers.completions_requests import CompletionRequest
from providers.token_text import token_bytes

TopTokens = Sequence[tuple[int, float]]

_CONTINUATION = bytes(range(0x80, 0xC0))
_FINISH = {"stop": "stop", "length": "length", "context": "length"}


class TokenNames:
    """How tokens are written on the wire; each id is looked up once."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._bytes: dict[int, bytes | None] = {}

    def alone(self, token_id: int) -> str:
        """A token by itself: its text, its bytes where they are no whole characters, its number if it is unknown."""
        found = self._lookup(token_id)
        if found is None:
            return f"<{token_id}>"
        try:
            return found.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found)

    def joined(self, token_ids: Sequence[int]) -> list[str]:
        """Texts of tokens in a row that join to the whole text: a character belongs to the token it begins in."""
        pieces: list[bytes] = []
        opened, missing = 0, 0  # the token that an unfinished character began in, and the bytes it lacks
        for token_id in token_ids:
            piece = self._lookup(token_id) or b""
            num_moved = min(missing, len(piece) - len(piece.lstrip(_CONTINUATION)))
            if num_moved:
                pieces[opened] += piece[:num_moved]
                piece, missing = piece[num_moved:], missing - num_moved
            if piece:
                opened, missing = len(pieces), _missing_bytes(piece)
            pieces.append(piece)
        return [piece.decode(errors="replace") for piece in pieces]

    def _lookup(self, token_id: int) -> bytes | None:
        if token_id not in self._bytes:
            self._bytes[token_id] = token_bytes(self._tokenizer, token_id)
        return self._bytes[token_id]


def _missing_bytes(piece: bytes) -> int:
    """How many bytes the last character of UTF-8 bytes lacks."""
    tail = piece[-4:]
    lead = len(tail.rstrip(_CONTINUATION))
    if not lead or tail[lead - 1] < 0xC0:
        return 0
    length = 2 + (tail[lead - 1] >= 0xE0) + (tail[lead - 1] >= 0xF0)
    return max(0, length - (len(tail) - lead + 1))


def choice_body(names: TokenNames, request: CompletionRequest, index: int, completion: Completion) -> dict[str, Any]:
    """One entry of a response's `choices`."""
    generation = completion.generation
    new_text = "" if generation is None else generation.text
    body: dict[str, Any] = {
        "index": index,
        "text": completion.prompt_text + new_text if request.echo else new_text,
        "logprobs": None,
        "finish_reason": "length" if generation is None else _FINISH[generation.finish_reason],
    }
    if request.logprobs is not None:
        body["logprobs"] = _logprobs(names, request, completion, body["text"])
    if request.prompt_logprobs is not None:
        body["prompt_logprobs"] = _prompt_logprobs(names, completion, request.prompt_logprobs)
    return body


def usage_body(completions: Sequence[Completion], n: int) -> dict[str, int]:
    """Counts of tokens: a prompt counts once, however many choices it has."""
    num_prompt = sum(len(completion.prompt_ids) for completion in completions[::n])
    num_new = sum(len(done.generation.token_ids) for done in completions if done.generation is not None)
    return {"prompt_tokens": num_prompt, "completion_tokens": num_new, "total_tokens": num_prompt + num_new}


def _logprobs(names: TokenNames, request: CompletionRequest, completion: Completion, text: str) -> dict[str, Any]:
    """OpenAI's parallel arrays over the tokens of the choice's own text; the first token of a prompt has none."""
    ids: list[int] = []
    values: list[float | None] = []
    tops: list[TopTokens] = []
    if request.echo:
        scores = completion.scores
        assert scores is not None
        ids += completion.prompt_ids
        values += [None, *scores.logprobs]
        tops += [(), *(scores.top or [()] * len(scores.logprobs))]
    if completion.generation is not None:
        ids += completion.generation.token_ids
        values += completion.generation.logprobs
        tops += completion.generation.top or [()] * len(completion.generation.token_ids)
    tokens = names.joined(ids)
    asked = request.logprobs or 0
    return {
        "tokens": tokens,
        "token_logprobs": [None if value is None else _finite(value) for value in values],
        "top_logprobs": [
            None if value is None else _top(names, token, token_id, value, top[:asked])
            for token, token_id, value, top in zip(tokens, ids, values, tops, strict=True)
        ],
        "text_offset": text_offsets(text, tokens),
    }


def _top(names: TokenNames, token: str, token_id: int, value: float, top: TopTokens) -> dict[str, float]:
    """The most likely tokens, best first, and the token itself; of two that are written alike the likelier stays."""
    found: dict[str, float] = {}
    for other, logprob in top:
        found.setdefault(token if other == token_id else names.alone(other), _finite(logprob))
    found.setdefault(token, _finite(value))
    return found


def text_offsets(text: str, tokens: Sequence[str]) -> list[int]:
    """Where in `text` each token begins. A token that left no text (BOS, EOS, a stop string cut off, a tokenizer's
    own leading space) takes none of it.
    """
    offsets, at = [], 0
    for token in tokens:
        offsets.append(at)
        shown = token if text.startswith(token, at) else token.lstrip(" ")
        if text.startswith(shown, at):
            at += len(shown)
    return offsets


def _prompt_logprobs(names: TokenNames, completion: Completion, asked: int) -> list[dict[str, Any] | None]:
    """vLLM's list over the prompt's tokens: None for the first, then id -> entry, the token's own first."""
    scores = completion.scores
    assert scores is not None
    tokens = names.joined(completion.prompt_ids)
    rows: list[dict[str, Any] | None] = [None]
    for index, token_id in enumerate(completion.prompt_ids[1:]):
        row = {str(token_id): _entry(scores.logprobs[index], scores.ranks[index] + 1, tokens[index + 1])}
        for place, (other, logprob) in enumerate(scores.top[index][:asked], start=1):
            row.setdefault(str(other), _entry(logprob, place, names.alone(other)))
        rows.append(row)
    return rows


def _entry(logprob: float, rank: int, text: str) -> dict[str, Any]:
    return {"logprob": _finite(logprob), "rank": rank, "decoded_token": text}


def _finite(value: float) -> float:
    """The log-probability, which JSON can write only if it is a finite number."""
    if not math.isfinite(value):
        raise ApiError(500, f"the model gave {value} where a log-probability stands", kind="server_error")
    return value
