"""The bytes of a stored score: a request's digest, and its scores with a checksum."""

import hashlib
import struct
import zlib
from array import array

from llm.scoring.requests import ScoreRequest, TokenScores

DIGEST_BYTES = 16


class DamagedRecordError(ValueError):
    """Stored bytes that do not carry their own checksum."""


def request_digest(request: ScoreRequest) -> bytes:
    """Digest of a request's token ids and of where its continuation begins."""
    ids = array("I", request.context_ids)
    ids.extend(request.continuation_ids)
    ids.append(len(request.context_ids))
    return hashlib.blake2b(ids, digest_size=DIGEST_BYTES).digest()


def pack_scores(digest: bytes, scores: TokenScores) -> bytes:
    """Logprobs as the float64 they are, is_greedy, and a checksum that covers the digest too."""
    body = struct.pack(f"<?{len(scores.logprobs)}d", scores.is_greedy, *scores.logprobs)
    return struct.pack("<I", zlib.crc32(digest + body)) + body


def unpack_scores(digest: bytes, record: bytes) -> TokenScores:
    """What `pack_scores` packed.

    Raises:
        DamagedRecordError: the checksum is another one.
    """
    body = record[4:]
    if len(record) < 5 or len(body) % 8 != 1 or struct.unpack_from("<I", record)[0] != zlib.crc32(digest + body):
        raise DamagedRecordError("a stored score does not match its checksum")
    is_greedy, *logprobs = struct.unpack(f"<?{len(body) // 8}d", body)
    return TokenScores(logprobs=tuple(logprobs), is_greedy=is_greedy)
