"""From the samples Inspect logged to the ledger's records: questions, choices, scores, credits, generated answers.

A log of this project's tasks says in each sample's metadata what was asked and in the output's metadata how each
choice scored. Any other multiple-choice log says its choices and target, and what was generated.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from llm.errors import InputError
from llm.evaluation.data import item_key
from reconcile.log_values import as_credit, as_float, as_logprob, choice_score
from reconcile.runs import ChoiceScore, ItemKey, PageRecord, SampleRecord, Status

_UNKEYED = ItemKey(digest="")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CUT_OFF = ("max_tokens", "model_length")


def sample_record(sample: Any, *, scorer: str) -> SampleRecord:
    """One item as one of its epochs shows it, without its credit: that is known when all epochs were reduced.

    Raises:
        InputError: a logged score that is no log-probability.
    """
    about = sample.metadata or {}
    scored = _score_of(sample, scorer)
    choices = tuple(sample.choices or ()) or tuple(about.get("choices") or ())
    continuations = _continuations(sample, scored)
    scores = _scores(sample, continuations, about)
    generated = None if continuations else _completion(sample)
    pick = _pick(scored, choices)
    return SampleRecord(
        key=_UNKEYED,
        subject=str(about.get("subject") or ""),
        sample_id=str(sample.id),
        question=str(about.get("question") or _input_text(sample.input)),
        choices=choices,
        gold=_gold(sample, choices, about),
        prompt=_input_text(sample.input) if continuations else _prompt_sent(sample),
        continuations=tuple(str(entry.get("text", "")) for entry in continuations),
        scores=scores,
        credit=None,
        pick=pick,
        status=_generated_status(sample, pick) if generated is not None else _scored_status(continuations),
        answer=generated,
        error=_error_text(sample, scored),
    )


def credited(record: SampleRecord, value: float | None) -> SampleRecord:
    """The record with its score after Inspect reduced the epochs; None or NaN if it was not scored."""
    credit = None if value is None or math.isnan(value) else as_credit(value)
    if credit is None:
        return replace(record, status=Status.ERRORED)
    return replace(record, credit=credit, error=None)


def page_record(sample: Any, *, scorer: str) -> PageRecord:
    """One page scored by `perplexity()`: its nats and tokens as the scorer logged them.

    Raises:
        InputError: a log whose page scores lack the nats or the tokens.
    """
    about = sample.metadata or {}
    text = _input_text(sample.input)
    scored = _score_of(sample, scorer)
    logged = (scored.metadata or {}) if scored is not None else {}
    nats, tokens = as_float(logged.get("sum_log_probs")), as_float(logged.get("num_tokens"))
    output = (sample.output.metadata or {}) if sample.output is not None else {}
    failed = nats is None or tokens is None
    original = str(about.get("page") or text)
    return PageRecord(
        key=ItemKey(digest=item_key(None, str(about.get("page") or sample.input), ())),
        sample_id=str(sample.id),
        nll=None if nats is None else -as_logprob(nats, f"sample {sample.id}"),
        num_tokens=None if tokens is None else int(tokens),
        num_words=int(about.get("num_words") or len(re.split(r"\s+", original))),
        num_bytes=int(about.get("num_bytes") or len(original.encode())),
        text="detokenised" if about.get("text") == "detokenised" else "raw",
        window=_window(output),
        status=Status.ERRORED if failed else Status.WINDOWED if output.get("windowed") else Status.SCORED,
        error=_error_text(sample, scored) if failed else None,
    )


def _window(output: Mapping[str, Any]) -> Any:
    """This project's provider scores every token of a text after a prefix token, in lm-eval's own windows; others
    do not score the first one."""
    return "rolling" if "num_windows" in output and "(prefix)" in str(output.get("first_token")) else "inspect"


def _score_of(sample: Any, scorer: str) -> Any:
    return (sample.scores or {}).get(scorer)


def _continuations(sample: Any, scored: Any) -> list[Mapping[str, Any]]:
    """What was logged about each choice's likelihood, by the scorer or by the provider; [] for a generated readout."""
    about_score = (scored.metadata or {}) if scored is not None else {}
    about_output = (sample.output.metadata or {}) if sample.output is not None else {}
    for found in (about_score.get("choices"), about_output.get("continuations")):
        if isinstance(found, list) and found and all(isinstance(e, Mapping) and "logprob" in e for e in found):
            return found
    return []


def _scores(
    sample: Any, continuations: Sequence[Mapping[str, Any]], about: Mapping[str, Any]
) -> tuple[ChoiceScore, ...]:
    if not continuations:  # generated, or the sample failed before anything was scored
        return ()
    texts = about.get("choice_texts") or [str(entry.get("text", "")).removeprefix(" ") for entry in continuations]
    if len(texts) != len(continuations):
        raise InputError(f"sample {sample.id} logs {len(continuations)} continuations for {len(texts)} choice texts")
    scores = []
    for entry, text in zip(continuations, texts, strict=True):
        bare = entry.get("unconditional_logprob")
        tokens = entry.get("num_tokens")
        scores.append(
            choice_score(
                as_logprob(entry["logprob"], f"sample {sample.id}"),
                str(text),
                num_tokens=None if tokens is None else int(tokens),
                is_greedy=entry.get("is_greedy"),
                unconditional=None if bare is None else as_logprob(bare, f"sample {sample.id}"),
                request_digest=entry.get("request_digest"),
            )
        )
    return tuple(scores)


def _gold(sample: Any, choices: Sequence[str], about: Mapping[str, Any]) -> int:
    """The right choice's index; -1 where the log does not say one."""
    gold = about.get("gold")
    if isinstance(gold, int) and not isinstance(gold, bool):
        return gold
    target = sample.target if isinstance(sample.target, str) else (sample.target or [""])[0]
    found = _letter_index(str(target), choices)
    return -1 if found is None else found


def _letter_index(text: str, choices: Sequence[str]) -> int | None:
    """The choice a letter, or the choice's own text, names."""
    bare = text.strip()
    if len(bare) == 1 and bare.upper() in _LETTERS[: len(choices)]:
        return _LETTERS.index(bare.upper())
    return choices.index(bare) if bare in choices else None


def _pick(scored: Any, choices: Sequence[str]) -> int | None:
    if scored is None:
        return None
    logged = (scored.metadata or {}).get("pick")
    if isinstance(logged, int) and not isinstance(logged, bool):
        return logged
    return _letter_index(scored.answer or "", choices)


def _scored_status(continuations: Sequence[Mapping[str, Any]]) -> Status:
    """What became of an item whose choices were scored."""
    if any(entry.get("windowed") for entry in continuations):
        return Status.WINDOWED
    if any(entry.get("num_truncated") for entry in continuations):
        return Status.TRUNCATED
    return Status.SCORED


def _generated_status(sample: Any, pick: int | None) -> Status:
    """What became of an item whose answer was generated."""
    answers = sample.output.choices if sample.output is not None else ()
    if sample.limit is not None or (answers and answers[0].stop_reason in _CUT_OFF):
        return Status.CUT_OFF
    return Status.UNPARSED if pick is None else Status.SCORED


def _completion(sample: Any) -> str:
    return sample.output.completion if sample.output is not None and sample.output.choices else ""


def _prompt_sent(sample: Any) -> str:
    """The text of the messages before the model's answer, as the log keeps them."""
    texts = [message.text for message in sample.messages or () if message.role in ("system", "user")]
    return "\n\n".join(texts) or _input_text(sample.input)


def _input_text(value: Any) -> str:
    return value if isinstance(value, str) else "\n\n".join(message.text for message in value)


def _error_text(sample: Any, scored: Any) -> str:
    if sample.error is not None:
        return str(sample.error.message).splitlines()[0]
    if sample.limit is not None:
        return f"stopped at its {sample.limit.type} limit"
    if scored is None:
        return "not scored"
    return str(scored.explanation or scored.reason or "scored as NaN")
