"""The records a ledger is made of: what one harness did, item by item, whoever ran it.

Everything in `reconcile` but the two modules that run a harness or read its files works on these records
alone, so this module imports neither torch nor a harness.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Literal

Harness = Literal["lm_eval", "inspect"]


class Status(StrEnum):
    """What became of an item; only the first three carry choice scores that can be replayed."""

    SCORED = "scored"
    TRUNCATED = "truncated"  # scored, but its context was cut on the left to fit the model
    WINDOWED = "windowed"  # scored in disjoint windows because it is longer than the context
    UNPARSED = "unparsed"  # generated, and no answer was found in the text
    CUT_OFF = "cut_off"  # generated, and ended by a limit; the answer found in it all the same is in `pick`
    ERRORED = "errored"  # no score at all


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """All that decides a number besides model and data. `template` names who defined the text: lm-eval or inspect."""

    template: Literal["lm-eval", "inspect"]
    num_fewshot: int
    normalisation: Literal["none", "char", "byte", "token", "pmi"]
    tie_break: Literal["first", "last", "random", "fractional", "any", "none"]
    readout: Literal["loglikelihood", "generate"] = "loglikelihood"
    seed: int = 0
    tie_atol: float = 0.0
    chat_template: bool = False


@dataclass(frozen=True, kw_only=True)
class ItemKey:
    """What items are matched by: (subject, normalised question, choices in original order) hashed, and which copy."""

    digest: str
    occurrence: int = 0


@dataclass(frozen=True, kw_only=True)
class ChoiceScore:
    """One choice under one template. `logprob` in nats; lengths are those of the scored choice text without the
    delimiter (characters, UTF-8 bytes) and of the scored continuation (tokens; None where a log does not say).

    `unconditional_logprob` is the same continuation after the empty context, where `pmi` asked for it.
    `request_digest` identifies the token ids (context, continuation) that were scored, where known.
    """

    logprob: float
    num_chars: int
    num_bytes: int
    num_tokens: int | None = None
    is_greedy: bool | None = None
    unconditional_logprob: float | None = None
    request_digest: str | None = None


@dataclass(frozen=True, kw_only=True)
class SampleRecord:
    """One item as one harness saw it. Choices stand in the data's original order, whatever was shown.

    `credit` is what the harness logged as the item's score (None when errored); `pick` the original index it chose,
    where it says. `scores` is empty for a generated readout; `answer` then holds the generated text.
    """

    key: ItemKey
    subject: str
    sample_id: str
    question: str
    choices: tuple[str, ...]
    gold: int
    prompt: str
    continuations: tuple[str, ...]
    scores: tuple[ChoiceScore, ...]
    credit: Fraction | None
    pick: int | None
    status: Status
    answer: str | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class PageRecord:
    """One WikiText page as one harness saw it: `nll` nats over `num_tokens` scored tokens, and the page's counts."""

    key: ItemKey
    sample_id: str
    nll: float | None
    num_tokens: int | None
    num_words: int
    num_bytes: int
    text: Literal["detokenised", "raw"]
    window: Literal["rolling", "inspect"]
    status: Status
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class HarnessRun:
    """One finished run of one harness on one benchmark.

    `reported` maps the harness's own metric names to the full floats it wrote; `headline` names the one compared.
    `subjects` maps each sub-task to the float the harness reported for it. `replayed` says whether replaying the
    harness's own aggregation over the logged credits gave `reported[headline]` to the bit (None: not tried).
    `settings` are further facts that the log states about the run (model, limit, special tokens), for comparing two.
    """

    harness: Harness
    task: str
    headline: str
    protocol: Protocol
    samples: tuple[SampleRecord, ...] = ()
    pages: tuple[PageRecord, ...] = ()
    reported: Mapping[str, float] = field(default_factory=dict)
    stderr: float | None = None
    subjects: Mapping[str, float] = field(default_factory=dict)
    averaging: Literal["micro", "macro"] = "micro"
    replayed: bool | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    log_files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
