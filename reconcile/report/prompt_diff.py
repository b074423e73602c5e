"""Two prompts word by word: what both have stays plain, the rest is marked on its own side."""

import difflib
import re
from dataclasses import dataclass

_WORDS = re.compile(r"\n|[^\S\n]+|\w+|[^\w\s]")
_MOST_WORDS = 3000


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A stretch of a prompt; `changed` where the other prompt has no such stretch there."""

    text: str
    changed: bool


def compare(left: str, right: str) -> tuple[list[Segment], list[Segment]]:
    """Both prompts in segments; prompts too long to compare word by word are compared line by line."""
    ours, theirs = _WORDS.findall(left), _WORDS.findall(right)
    if max(len(ours), len(theirs)) > _MOST_WORDS:
        ours, theirs = left.splitlines(keepends=True), right.splitlines(keepends=True)
    sides: tuple[list[Segment], list[Segment]] = ([], [])
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        for side, words in zip(sides, (ours[i1:i2], theirs[j1:j2]), strict=True):
            if words:
                side.append(Segment(text="".join(words), changed=tag != "equal"))
    return sides
