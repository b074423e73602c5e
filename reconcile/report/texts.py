"""Texts from data or models, made safe to show: what cannot be seen is named, what directs text is disarmed."""

import re
from collections.abc import Collection

_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_PICTURES = 0x2400


def visible(text: str) -> str:
    """`text` with control characters as pictures (NUL is ␀) and direction marks and lone surrogates by number.

    New lines and tabs stay; so do joiners, which emoji are made with. The result encodes as UTF-8.
    """
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return _INVISIBLE.sub(_named, text)


def _named(found: re.Match[str]) -> str:
    code = ord(found.group())
    if code < 0x20:
        return chr(_PICTURES + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def common_beginning(texts: Collection[str]) -> str:
    """What all the texts begin with."""
    first, last = min(texts, default=""), max(texts, default="")
    apart = next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), None)
    return first[: min(len(first), len(last)) if apart is None else apart]


def one_line(text: str, longest: int) -> str:
    """The visible text on one line, cut where it is longer."""
    flat = " ".join(visible(text).split())
    return flat if len(flat) <= longest else flat[: longest - 1] + "…"
