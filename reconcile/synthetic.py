"""Runs made from plain numbers: for worked examples, planted gaps and measurements, without any harness or model."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from reconcile.choices import build_table, mark_natively
from reconcile.coverage import estimate
from reconcile.runs import ChoiceScore, Harness, HarnessRun, ItemKey, Protocol, SampleRecord, Status

LM_EVAL = Protocol(template="lm-eval", num_fewshot=0, normalisation="none", tie_break="first")
INSPECT = Protocol(template="inspect", num_fewshot=0, normalisation="token", tie_break="fractional")


@dataclass(frozen=True, kw_only=True)
class SyntheticItem:
    """One item's numbers under one template: scores and token counts (K,), the right choice, and its subject."""

    logprobs: Sequence[float]
    gold: int
    num_tokens: Sequence[int] | None = None
    name: str = ""
    subject: str = ""
    status: Status = Status.SCORED
    credit: Fraction | None = None
    pick: int | None = None
    answer: str | None = None


def sample(item: SyntheticItem, *, template: str) -> SampleRecord:
    """The record of one item; characters and bytes are counted like tokens, the prompt names item and template."""
    lengths = item.num_tokens if item.num_tokens is not None else [1] * len(item.logprobs)
    question, choices = f"question {item.name}", tuple(f"choice {index}" for index in range(len(item.logprobs)))
    identity = "\x1f".join((item.subject, question, *choices))
    generated = item.answer is not None
    return SampleRecord(
        key=ItemKey(digest=hashlib.sha256(identity.encode()).hexdigest()[:16]),
        subject=item.subject,
        sample_id=item.name,
        question=question,
        choices=choices,
        gold=item.gold,
        prompt=f"{question} as {template} words it",
        continuations=() if generated else tuple(f" {choice}" for choice in choices),
        scores=()
        if generated
        else tuple(
            ChoiceScore(logprob=float(logprob), num_chars=length, num_bytes=length, num_tokens=length)
            for logprob, length in zip(item.logprobs, lengths, strict=True)
        ),
        credit=item.credit,
        pick=item.pick,
        status=item.status,
        answer=item.answer,
    )


def run_of(
    harness: Harness,
    items: Sequence[SyntheticItem],
    *,
    protocol: Protocol | None = None,
    averaging: Literal["micro", "macro"] = "micro",
) -> HarnessRun:
    """A finished run over the items: credits as its own protocol gives them (unless an item brings its own), and
    the value a harness would report for them.
    """
    own = protocol if protocol is not None else (LM_EVAL if harness == "lm_eval" else INSPECT)
    samples = tuple(sample(item, template=own.template) for item in items)
    if own.readout == "loglikelihood":
        samples = _credited(samples, own)
    run = HarnessRun(
        harness=harness,
        task="synthetic",
        headline="accuracy",
        protocol=own,
        samples=samples,
        averaging=averaging,
    )
    return replace(run, reported={"accuracy": float(estimate(run))})


def _credited(samples: tuple[SampleRecord, ...], protocol: Protocol) -> tuple[SampleRecord, ...]:
    marks = mark_natively(build_table(samples), protocol)
    credited = []
    for record, credit, pick in zip(samples, marks.fractions(), marks.picks.tolist(), strict=True):
        if record.status is Status.ERRORED or record.credit is not None:
            credited.append(record)
        else:
            credited.append(replace(record, credit=credit, pick=None if pick < 0 else pick))
    return tuple(credited)
