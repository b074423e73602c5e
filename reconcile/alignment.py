"""Makes two logs comparable: choices back in one order, token counts where a log has none.

Shuffled choices are matched by their texts, repeated texts by occurrence. Token counts come from a tokenizer that the
caller vouches for; nothing here loads one.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from reconcile.log_values import number_occurrences
from reconcile.matching import plain_text
from reconcile.runs import HarnessRun, SampleRecord

Content = tuple[str, tuple[str, ...]]


def in_order_of(run: HarnessRun, reference: HarnessRun) -> HarnessRun:
    """`run` with the choices of its items in the order in which `reference` has them.

    An item is reordered when the reference has its question with the same choices in another order, and not in its
    own. Everything by choice moves along: scores, continuations, the right choice, the pick.
    """
    known = {_content(sample) for sample in reference.samples}
    orders: defaultdict[Content, list[SampleRecord]] = defaultdict(list)
    for sample in reference.samples:
        orders[_unordered(sample)].append(sample)
    changed = 0
    samples = []
    for sample in run.samples:
        found = orders.get(_unordered(sample))
        if _content(sample) in known or not found:
            samples.append(sample)
            continue
        samples.append(_reordered(sample, found[0].choices))
        changed += 1
    if not changed:
        return run
    note = f"{changed} items had their choices in another order; they were compared by original choice"
    return replace(run, samples=number_occurrences(samples), notes=(*run.notes, note))


def with_token_counts(run: HarnessRun, tokenizer: Any, max_length: int) -> HarnessRun:
    """`run` with the number of scored tokens and the request's identity of every choice that lacks them.

    Texts are cut into ids as lm-eval cuts them, so this holds for logs of lm-eval's own models.
    """
    from llm.scoring.encoding import encode_pairs, fit

    pairs = [
        (sample.prompt, text)
        for sample in run.samples
        for text, score in zip(sample.continuations, sample.scores, strict=True)
        if score.num_tokens is None
    ]
    if not pairs:
        return run
    requests = {
        pair: fit(found.request, max_length)[0]
        for pair, found in zip(pairs, encode_pairs(tokenizer, pairs), strict=True)
    }
    samples = []
    for sample in run.samples:
        scores = tuple(
            score
            if score.num_tokens is not None
            else replace(
                score,
                num_tokens=len(requests[sample.prompt, text].continuation_ids),
                request_digest=requests[sample.prompt, text].digest,
            )
            for text, score in zip(sample.continuations, sample.scores, strict=True)
        )
        samples.append(replace(sample, scores=scores))
    return replace(run, samples=tuple(samples))


def _content(sample: SampleRecord) -> Content:
    return plain_text(sample.question), tuple(plain_text(choice) for choice in sample.choices)


def _unordered(sample: SampleRecord) -> Content:
    question, choices = _content(sample)
    return question, tuple(sorted(choices))


def _reordered(sample: SampleRecord, order: Sequence[str]) -> SampleRecord:
    """The sample with its choices as in `order`, which holds the same texts."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for index, choice in enumerate(sample.choices):
        places[plain_text(choice)].append(index)
    seen: Counter[str] = Counter()
    moved = []
    for choice in order:
        text = plain_text(choice)
        moved.append(places[text][seen[text]])
        seen[text] += 1
    new_place = {old: new for new, old in enumerate(moved)}
    return replace(
        sample,
        choices=tuple(sample.choices[old] for old in moved),
        continuations=tuple(sample.continuations[old] for old in moved) if sample.continuations else (),
        scores=tuple(sample.scores[old] for old in moved) if sample.scores else (),
        gold=new_place.get(sample.gold, sample.gold),
        pick=None if sample.pick is None else new_place.get(sample.pick),
    )
