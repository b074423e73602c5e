"""A token's own text and bytes, which decoding it alone does not give: a piece may be half a character."""

from functools import lru_cache
from typing import Any


def token_bytes(tokenizer: Any, token_id: int) -> bytes | None:
    """The bytes that a token adds to a text; None for an id that the tokenizer does not know (padded vocabularies)."""
    piece = tokenizer.convert_ids_to_tokens(token_id)
    if piece is None:
        return None
    if token_id in tokenizer.added_tokens_decoder:
        return str(piece).encode()
    if _is_byte_level(tokenizer):
        table = _byte_level_alphabet()
        return bytes(table[character] for character in piece)
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return str(piece).replace("▁", " ").encode()


def token_text(tokenizer: Any, token_id: int) -> str:
    """The token as text; bytes that are no whole character show as U+FFFD, an unknown id as its number."""
    found = token_bytes(tokenizer, token_id)
    return f"<{token_id}>" if found is None else found.decode("utf-8", errors="replace")


def _is_byte_level(tokenizer: Any) -> bool:
    return "ByteLevel" in repr(tokenizer.backend_tokenizer.decoder)


@lru_cache(maxsize=1)
def _byte_level_alphabet() -> dict[str, int]:
    """Character -> byte of the byte-level alphabet: printable Latin-1 stands for itself, the other bytes, in order,
    for the characters from U+0100 (openai/gpt-2, src/encoder.py:9-27).
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
