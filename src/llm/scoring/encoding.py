"""Text to token ids, the one place that does it: both doors call these functions and never split text themselves.

The conventions are lm-eval's own (lm_eval 0.4.13: `TemplateLM._encode_pair`, `TemplateLM.loglikelihood`,
`HFLM.tok_encode`, `utils.get_rolling_token_windows`), with the cases it leaves undefined given a meaning here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llm.errors import InputError
from llm.scoring.requests import ScoreRequest

Split = Literal["joint", "merged", "separate"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedPair:
    """A request and how its text was cut.

    `split` is "joint" when the joint encoding starts with the context's own ids; "merged" when a token spans the
    join, so that what is scored is the tail of the joint encoding beyond the context's length, as lm-eval does; and
    "separate" when that tail is empty though there is text to score: then the continuation is encoded by itself.
    """

    request: ScoreRequest
    split: Split


def prefix_token_id(tokenizer: Any) -> int:
    """The token that stands for an empty context: BOS where the tokenizer has one, else EOS (as `HFLM`)."""
    for token_id in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token_id is not None:
            return int(token_id)
    raise InputError("the tokenizer has neither a BOS nor an EOS token: set tokenizer.bos_token to score from nothing")


def encode_texts(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each text as the model is to read it from the start, in one call.

    The tokenizer's own special tokens are added, except where the text already starts with the prefix token's
    text: there is never a second BOS.
    """
    prefix_text = tokenizer.decode([prefix_token_id(tokenizer)])
    plain = [bool(prefix_text) and text.startswith(prefix_text) for text in texts]
    encoded: list[list[int]] = [[] for _ in texts]
    for bare in (False, True):
        chosen = [index for index, flag in enumerate(plain) if flag is bare]
        for index, ids in zip(chosen, _encode(tokenizer, [texts[i] for i in chosen], special=not bare), strict=True):
            encoded[index] = ids
    return encoded


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Ids of one text as the model is to read it from the start (see `encode_texts`)."""
    return encode_texts(tokenizer, [text])[0]


def encode_document(tokenizer: Any, text: str) -> list[int]:
    """Ids of a text all of whose tokens are to be scored after the prefix token: it carries no BOS of its own."""
    ids = encode_text(tokenizer, text)
    prefix = prefix_token_id(tokenizer)
    return ids[1:] if ids and ids[0] == prefix else ids


def encode_pair(tokenizer: Any, context: str, continuation: str) -> ScoreRequest:
    """The request for `continuation` after `context`: trailing white space of the context moves to the
    continuation, and the continuation's ids are the joint encoding beyond the context's length.
    """
    return encode_pair_flagged(tokenizer, context, continuation).request


def encode_pair_flagged(tokenizer: Any, context: str, continuation: str) -> EncodedPair:
    """As `encode_pair`, with word of how the text was cut."""
    return encode_pairs(tokenizer, [(context, continuation)])[0]


def encode_pairs(tokenizer: Any, pairs: Sequence[tuple[str, str]]) -> list[EncodedPair]:
    """As `encode_pair_flagged` for many pairs at once; each distinct text is encoded once."""
    moved = [_move_spaces(context, continuation) for context, continuation in pairs]
    whole = {text for context, continuation in moved if context for text in (context, context + continuation)}
    texts = sorted(whole)
    ids = dict(zip(texts, encode_texts(tokenizer, texts), strict=True))
    bare = sorted(
        {continuation for context, continuation in moved if not context or _is_swallowed(ids, context, continuation)}
    )
    bare_ids = dict(zip(bare, _encode(tokenizer, bare, special=False), strict=True))
    prefix = prefix_token_id(tokenizer) if any(not ids.get(context) for context, _ in moved) else -1
    return [_cut(ids, bare_ids, prefix, context, continuation) for context, continuation in moved]


def fit(request: ScoreRequest, max_length: int) -> tuple[ScoreRequest, int]:
    """The request as a model of `max_length` positions can score it, and the number of tokens left out.

    The last token needs no position of its own, so max_length + 1 ids fit; what exceeds that is cut from the left
    (as `HFLM`). A continuation longer than max_length loses its own first tokens, which is cut too, and counted.
    """
    if max_length < 1:
        raise InputError(f"max_length is {max_length}: give at least 1 position")
    num_truncated = len(request.context_ids) + len(request.continuation_ids) - (max_length + 1)
    if num_truncated <= 0:
        return request, 0
    kept = (request.context_ids + request.continuation_ids)[num_truncated:]
    start = max(1, len(kept) - len(request.continuation_ids))
    return ScoreRequest(context_ids=kept[:start], continuation_ids=kept[start:]), num_truncated


def rolling_windows(ids: Sequence[int], prefix_id: int, max_length: int) -> list[ScoreRequest]:
    """Requests that score every id of a document once, in order, each window conditioned on at least one token.

    The first window predicts up to max_length ids after the prefix token. Every later one predicts the next
    max_length ids (fewer at the end) after the ids before them: a full window has one id of context, the last keeps
    max_length inputs and so conditions on more. lm-eval's windows with context_len 1, made disjoint.
    """
    if max_length < 1:
        raise InputError(f"max_length is {max_length}: give at least 1 position")
    windows = []
    for start in range(0, len(ids), max_length):
        end = min(start + max_length, len(ids))
        context = ids[end - max_length - 1 : start] if start else [prefix_id]
        windows.append(ScoreRequest(context_ids=tuple(context), continuation_ids=tuple(ids[start:end])))
    return windows


def _encode(tokenizer: Any, texts: Sequence[str], *, special: bool) -> list[list[int]]:
    if not texts:
        return []
    encoded = tokenizer(list(texts), add_special_tokens=special, return_attention_mask=False, verbose=False)
    return [list(ids) for ids in encoded["input_ids"]]


def _move_spaces(context: str, continuation: str) -> tuple[str, str]:
    kept = context.rstrip()
    return kept, context[len(kept) :] + continuation


def _is_swallowed(ids: dict[str, list[int]], context: str, continuation: str) -> bool:
    """Whether the joint encoding has nothing left for a continuation that has text."""
    return bool(continuation) and len(ids[context + continuation]) <= len(ids[context])


def _cut(
    ids: dict[str, list[int]], bare: dict[str, list[int]], prefix: int, context: str, continuation: str
) -> EncodedPair:
    if not context:
        own = bare[continuation]
        tail = own[1:] if own and own[0] == prefix else own
        return EncodedPair(request=_request([prefix], tail), split="joint")
    head = ids[context] or [prefix]
    if _is_swallowed(ids, context, continuation):
        return EncodedPair(request=_request(head, bare[continuation]), split="separate")
    joint = ids[context + continuation]
    clean = joint[: len(ids[context])] == ids[context]
    return EncodedPair(request=_request(head, joint[len(ids[context]) :]), split="joint" if clean else "merged")


def _request(context: Sequence[int], continuation: Sequence[int]) -> ScoreRequest:
    return ScoreRequest(context_ids=tuple(context), continuation_ids=tuple(continuation))
