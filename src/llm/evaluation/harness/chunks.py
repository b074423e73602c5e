"""Many requests in pieces, one call of the scorer each: progress shows and a stored score survives an interruption."""

from collections.abc import Iterator, Sequence

from llm.scoring.requests import ScoreRequest

CHUNK_TOKENS = 8192
SHARED_TOKENS = 64


def chunks(requests: Sequence[ScoreRequest]) -> Iterator[list[int]]:
    """The requests' indices, each once, in pieces of about CHUNK_TOKENS tokens that are not shared with a neighbour.

    They are ordered by their ids and cut where neighbours share fewer than SHARED_TOKENS, so that a few-shot prefix
    stays in one piece, unless the piece grows to eight times its size.
    """
    ids = [request.context_ids + request.continuation_ids for request in requests]
    chunk: list[int] = []
    tokens = 0
    before: tuple[int, ...] = ()
    for index in sorted(range(len(requests)), key=ids.__getitem__):
        shared = _num_shared(before, ids[index])
        full = (tokens >= CHUNK_TOKENS and shared < SHARED_TOKENS) or tokens >= 8 * CHUNK_TOKENS
        if chunk and full:
            yield chunk
            chunk, tokens, shared = [], 0, 0
        chunk.append(index)
        tokens += len(ids[index]) - shared
        before = ids[index]
    if chunk:
        yield chunk


def _num_shared(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common beginning."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
