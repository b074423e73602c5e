"""Which item of one run is which item of the other: by content, never by position."""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from reconcile.runs import HarnessRun, SampleRecord, Status

Key = tuple[object, ...]
Pair = tuple[SampleRecord, SampleRecord]


@dataclass(frozen=True, kw_only=True)
class Unmatched:
    """What one side scored and the other side cannot answer for, by reason."""

    only: tuple[SampleRecord, ...] = ()
    duplicates: tuple[SampleRecord, ...] = ()
    errored: tuple[SampleRecord, ...] = ()
    gold: tuple[SampleRecord, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Matching:
    """`common` pairs (lm-eval's, Inspect's) carry a credit on both sides and the same gold, in lm-eval's order.

    An unmatched item stands under `duplicates` when another copy of it was matched (in any subject: Inspect's own MMLU
    drops copies that lm-eval's keeps), else under `only`; under
    `errored` when its partner has no score; under `gold` when the sides disagree about the right answer.
    """

    common: tuple[Pair, ...]
    lm_eval: Unmatched
    inspect: Unmatched
    num_errored_both: int = 0


def match(lm_eval: HarnessRun, inspect: HarnessRun) -> Matching:
    """Pairs the items of two runs one to one by (subject where both have it, question, choices, occurrence)."""
    lefts, rights = _keyed(lm_eval, inspect), _keyed(inspect, lm_eval)
    common: list[Pair] = []
    left_errored, right_errored, left_gold, right_gold = [], [], [], []
    num_errored_both = 0
    for key, left in lefts.items():
        right = rights.get(key)
        if right is None:
            continue
        if left.gold != right.gold:
            left_gold.append(left)
            right_gold.append(right)
        elif is_credited(left) and is_credited(right):
            common.append((left, right))
        elif is_credited(left):
            left_errored.append(left)
        elif is_credited(right):
            right_errored.append(right)
        else:
            num_errored_both += 1
    return Matching(
        common=tuple(common),
        lm_eval=_unmatched(lefts, rights, errored=left_errored, gold=left_gold),
        inspect=_unmatched(rights, lefts, errored=right_errored, gold=right_gold),
        num_errored_both=num_errored_both,
    )


def is_credited(sample: SampleRecord) -> bool:
    """Whether the harness gave the item a score at all."""
    return sample.credit is not None and sample.status is not Status.ERRORED


def content(sample: SampleRecord) -> Key:
    """What makes two items the same question whatever subject lists them: question and choices, white space aside."""
    return (plain_text(sample.question), tuple(plain_text(choice) for choice in sample.choices))


def _unmatched(
    own: dict[Key, SampleRecord],
    other: dict[Key, SampleRecord],
    *,
    errored: Sequence[SampleRecord],
    gold: Sequence[SampleRecord],
) -> Unmatched:
    lone = [sample for key, sample in own.items() if key not in other]
    matched = {content(sample) for key, sample in own.items() if key in other} if lone else set()
    return Unmatched(
        only=tuple(sample for sample in lone if content(sample) not in matched),
        duplicates=tuple(sample for sample in lone if content(sample) in matched),
        errored=tuple(errored),
        gold=tuple(sample for sample in gold if is_credited(sample)),
    )


def _keyed(run: HarnessRun, other: HarnessRun) -> dict[Key, SampleRecord]:
    """Items by key. Digests hold the subject, so they serve only where both runs name subjects (or neither does)."""
    use_digests = _names_subjects(run) == _names_subjects(other)
    seen: Counter[Key] = Counter()
    keyed: dict[Key, SampleRecord] = {}
    for sample in _in_order_of_occurrence(run.samples):
        stem: Key = (sample.key.digest,) if use_digests else content(sample)
        keyed[(*stem, seen[stem])] = sample
        seen[stem] += 1
    return keyed


def _in_order_of_occurrence(samples: Sequence[SampleRecord]) -> list[SampleRecord]:
    """The samples with copies of one item in the order of their occurrence numbers, everything else in place."""
    slots: defaultdict[str, list[int]] = defaultdict(list)
    for position, sample in enumerate(samples):
        slots[sample.key.digest].append(position)
    ordered = list(samples)
    for positions in slots.values():
        copies = sorted((samples[position] for position in positions), key=lambda sample: sample.key.occurrence)
        for position, sample in zip(positions, copies, strict=True):
            ordered[position] = sample
    return ordered


def _names_subjects(run: HarnessRun) -> bool:
    return any(sample.subject for sample in run.samples)


def plain_text(text: str) -> str:
    """Text with canonical characters and single spaces: what two loaders of one data set should agree on."""
    return " ".join(unicodedata.normalize("NFC", text).split())
