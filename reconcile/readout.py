"""A lenient reader of generated answers, to say how many *no answer found* plainly name a choice in another form."""

import re
from collections.abc import Sequence

from reconcile.matching import plain_text
from reconcile.runs import SampleRecord, Status

_ANSWER_IS = r"(?i:\banswer\b(?:\s+is)?)\W*\b"
_LETTER_FORMS = (
    r"^\W*([A-Z])\W*$",  # the letter alone: "B", "(B)", "**B**"
    r"^\W*([A-Z])\W*[).:]",  # the shown layout: "B) wheel and axle", "B. two"
    _ANSWER_IS + r"([B-HJ-Z])\b",  # "the answer is B because", which "A" and "I" could begin as words
    _ANSWER_IS + r"([A-Za-z])\b(?=\s*(?:[).:,;!?*]|$))",  # "Answer: (b)", "the answer is a.", not "is a lever"
)


def named_choice(answer: str, choices: Sequence[str]) -> int | None:
    """The index of the one choice that a generated text plainly names, by letter or by its own words; else None."""
    letters = {
        index
        for form in _LETTER_FORMS
        for letter in re.findall(form, answer.strip(), flags=re.MULTILINE)
        if 0 <= (index := ord(letter.upper()) - ord("A")) < len(choices)
    }
    if len(letters) == 1:
        return letters.pop()
    if letters:
        return None
    said = plain_text(answer).casefold()
    whole = [index for index, choice in enumerate(choices) if _says(said, plain_text(choice).casefold())]
    return whole[0] if len(whole) == 1 else None


def _says(said: str, choice: str) -> bool:
    return bool(choice) and re.search(rf"(?<!\w){re.escape(choice)}(?!\w)", said) is not None


def is_unfound(sample: SampleRecord) -> bool:
    """Whether an answer was generated, whole or cut off, and none was found in it."""
    return sample.status is Status.UNPARSED or (sample.status is Status.CUT_OFF and sample.pick is None)


def count_named(samples: Sequence[SampleRecord]) -> tuple[int, int, int]:
    """Of generated items: how many had no answer found, of these how many name a choice, of these how many rightly."""
    unfound = [sample for sample in samples if is_unfound(sample)]
    named = [(sample, named_choice(sample.answer or "", sample.choices)) for sample in unfound]
    return (
        len(unfound),
        sum(index is not None for _, index in named),
        sum(index == sample.gold for sample, index in named),
    )
