"""Why two runs' scores of one item may differ: another text, the same text in other tokens, or another engine."""

from typing import Literal

from reconcile.runs import Protocol, SampleRecord

Origin = Literal["template", "tokenisation", "engine"]
ORIGINS: tuple[Origin, ...] = ("template", "tokenisation", "engine")


def origin(left: SampleRecord, right: SampleRecord, *, same_template: bool) -> Origin:
    """What a difference between the sides' scores of this item is owed to.

    `same_template` answers for logs that hold no text. The same token ids, or the same text where no ids are known,
    leave only the engine.
    """
    same_ids = _same_ids(left, right)
    if same_ids:
        return "engine"
    same_text = _same_text(left, right)
    if same_text is None:
        same_text = same_template
    if not same_text:
        return "template"
    return "engine" if same_ids is None else "tokenisation"


def defines_same_text(one: Protocol, other: Protocol) -> bool:
    """Whether two protocols claim the same template."""
    return (one.template, one.num_fewshot, one.chat_template) == (
        other.template,
        other.num_fewshot,
        other.chat_template,
    )


def _same_ids(left: SampleRecord, right: SampleRecord) -> bool | None:
    ours = [score.request_digest for score in left.scores]
    theirs = [score.request_digest for score in right.scores]
    if not ours or not theirs or None in ours or None in theirs:
        return None
    return ours == theirs


def _same_text(left: SampleRecord, right: SampleRecord) -> bool | None:
    """Whether prompt and continuations join to the same texts, wherever each side cuts them."""
    if not (left.prompt or left.continuations) or not (right.prompt or right.continuations):
        return None
    return _texts(left) == _texts(right)


def _texts(sample: SampleRecord) -> list[str]:
    return [sample.prompt + continuation for continuation in sample.continuations] or [sample.prompt]
