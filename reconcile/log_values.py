"""What both log readers need to turn logged values into records: strict numbers, credits as fractions, lengths.

Logs write numbers as floats, strings, booleans or NaN, by version. Nothing here opens a file.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from llm.errors import InputError
from llm.evaluation.data import item_key
from reconcile.runs import ChoiceScore, ItemKey, SampleRecord

# A sum of log-softmax values can exceed 0 by rounding alone; more than this is something else.
LOGPROB_SLACK = 1e-6

_TRUE = frozenset({"true", "1", "1.0", "c", "correct", "yes"})
_FALSE = frozenset({"false", "0", "0.0", "i", "incorrect", "no"})


def as_float(value: Any) -> float | None:
    """`value` as a float where it stands for a number (a string, a boolean, "NaN"), else None."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value.strip().replace("\u2212", "-"))
        except ValueError:
            return None
    return None


def as_flag(value: Any) -> bool | None:
    """`value` as a boolean: logs of some versions hold the text "False", which is true to Python."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    return False if text in _FALSE else None


def as_logprob(value: Any, where: str) -> float:
    """A logged log-probability in nats; NaN and -Infinity pass, they are what the model gave.

    Raises:
        InputError: not a number, or above 0 by more than rounding.
    """
    number = as_float(value)
    if number is None:
        raise InputError(f"{where} holds {value!r} where a log-probability is expected")
    if number > LOGPROB_SLACK:
        raise InputError(f"{where} holds {number}, not a log-probability: it is above 0; log natural-log probabilities")
    return min(number, 0.0) if not math.isnan(number) else number


def as_credit(value: Any) -> Fraction | None:
    """A logged item score as an exact fraction; None for a missing or NaN one.

    A float that is the nearest double to a fraction with a small denominator (1/3, 2/3, 1/4) stands for it.
    """
    number = as_float(value)
    if number is None:
        flag = as_flag(value) if value is not None else None
        return None if flag is None else Fraction(int(flag))
    if not math.isfinite(number):
        return None
    near = Fraction(number).limit_denominator(5040)
    return near if float(near) == number else Fraction(number)


def choice_score(
    logprob: float,
    text: str,
    *,
    num_tokens: int | None = None,
    is_greedy: bool | None = None,
    unconditional: float | None = None,
    request_digest: str | None = None,
) -> ChoiceScore:
    """A choice's score with the lengths of `text`, the scored text without its delimiter."""
    return ChoiceScore(
        logprob=logprob,
        num_chars=len(text),
        num_bytes=len(text.encode()),
        num_tokens=num_tokens,
        is_greedy=is_greedy,
        unconditional_logprob=unconditional,
        request_digest=request_digest,
    )


def number_occurrences(samples: Iterable[SampleRecord], subject: bool = True) -> tuple[SampleRecord, ...]:
    """The records with their keys set from their content, copies numbered in the order given.

    `subject` False leaves the subject out of the key: for two logs of which one does not say it.
    """
    seen: Counter[str] = Counter()
    keyed = []
    for sample in samples:
        digest = item_key(sample.subject if subject else None, sample.question, sample.choices)
        keyed.append(replace(sample, key=ItemKey(digest=digest, occurrence=seen[digest])))
        seen[digest] += 1
    return tuple(keyed)


def pair_digest(context: str, continuation: str) -> str:
    """What a pair of texts is found by in a request trace: 32 hex digits."""
    text = json.dumps([context, continuation], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def mean(values: Sequence[float]) -> float:
    """The sum in order over the number, as both harnesses take it."""
    return sum(values) / len(values)
