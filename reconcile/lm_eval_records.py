"""From the lines lm-eval logged to the ledger's records: questions, choices, scores, credits.

lm-eval logs each document as its dataset has it and each request as a pair of texts, so an item's question and
choices are looked up in the document under the names benchmarks use, and fall back to the texts themselves.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm.errors import InputError
from reconcile.lm_eval_logs import LoggedDoc
from reconcile.log_values import as_credit, as_flag, as_float, as_logprob, choice_score, pair_digest
from reconcile.runs import ChoiceScore, ItemKey, PageRecord, SampleRecord, Status

NORMALISATION_OF = {"acc": "none", "acc_norm": "char", "acc_bytes": "byte", "acc_mutual_info": "pmi"}

_QUESTION_FIELDS = (
    "question",
    "query",
    "question_stem",
    "ctx",
    "goal",
    "premise",
    "sentence",
    "problem",
    "input",
    "text",
)
_CHOICE_FIELDS = ("choices", "options", "endings", "answers", "candidates")
_UNKEYED = ItemKey(digest="")


@dataclass(frozen=True, kw_only=True)
class DocReader:
    """Turns the documents of one task into records; `metric` is the logged field that is the item's credit."""

    task: str
    subject: str
    metric: str
    delimiter: str = " "
    trace: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def sample(self, logged: LoggedDoc) -> SampleRecord:
        """One question with its choices.

        Raises:
            InputError: what is logged is neither scored choices nor a generation.
        """
        if logged.requests and not isinstance(logged.requests[0][1], str):
            return self._generated(logged)
        pairs = [(context, str(continuation)) for context, continuation in logged.requests]
        pairs, unconditional = _halves(pairs, logged.responses)
        scores = self._scores(logged, pairs, unconditional)
        choices = _choices(logged.doc, [self._bare(text) for _, text in pairs])
        credit = as_credit(logged.values.get(self.metric))
        return SampleRecord(
            key=_UNKEYED,
            subject=self._subject(logged.doc),
            sample_id=self._sample_id(logged),
            question=_question(logged.doc, pairs[0][0]),
            choices=choices,
            gold=_gold(logged, choices, [self._bare(text) for _, text in pairs]),
            prompt=_one_prompt([context for context, _ in pairs]),
            continuations=tuple(text for _, text in pairs),
            scores=scores,
            credit=credit,
            pick=None,
            status=self._status(pairs, credit is not None),
            error=None if credit is not None else f"{logged.where} logs no {self.metric}",
        )

    def page(self, logged: LoggedDoc) -> PageRecord:
        """One document of a rolling-loglikelihood task: its nats, and the words and bytes lm-eval counted."""
        words = _weight(logged, "word_perplexity")
        size = _weight(logged, "byte_perplexity") or _weight(logged, "bits_per_byte")
        if words is None or size is None:
            raise InputError(f"{logged.where} logs neither word_perplexity nor byte_perplexity as (nats, count)")
        nats = as_logprob(logged.values["word_perplexity"][0], logged.where)
        scored = logged.requests[0][0] if logged.requests else ""
        traced = self.trace.get(pair_digest("", scored), {})
        raw = str(logged.doc.get("page", scored))
        return PageRecord(
            key=_UNKEYED,
            sample_id=self._sample_id(logged),
            nll=-nats,
            num_tokens=traced.get("num_tokens"),
            num_words=int(words),
            num_bytes=int(size),
            text="raw" if scored == raw else "detokenised",
            window="rolling",
            status=Status.WINDOWED if traced.get("num_windows", 1) > 1 else Status.SCORED,
        )

    def _scores(
        self, logged: LoggedDoc, pairs: Sequence[tuple[str, str]], unconditional: Sequence[Any]
    ) -> tuple[ChoiceScore, ...]:
        scores = []
        for index, (context, continuation) in enumerate(pairs):
            response = logged.responses[index]
            nats, greedy = (response[0], response[1]) if isinstance(response, list | tuple) else (response, None)
            traced = self.trace.get(pair_digest(context, continuation), {})
            bare = unconditional[index] if unconditional else None
            scores.append(
                choice_score(
                    as_logprob(nats, f"{logged.where} choice {index}"),
                    self._bare(continuation),
                    num_tokens=traced.get("num_tokens"),
                    is_greedy=None if greedy is None else as_flag(greedy),
                    unconditional=None if bare is None else as_logprob(_first(bare), logged.where),
                    request_digest=traced.get("request"),
                )
            )
        return tuple(scores)

    def _generated(self, logged: LoggedDoc) -> SampleRecord:
        context = logged.requests[0][0]
        answer = _first(logged.responses[0]) if logged.responses else ""
        choices = _choices(logged.doc, [])
        credit = as_credit(logged.values.get(self.metric))
        letters = [chr(ord("A") + index) for index in range(len(choices))]
        pick = _index_of(str(answer), choices, letters)
        return SampleRecord(
            key=_UNKEYED,
            subject=self._subject(logged.doc),
            sample_id=self._sample_id(logged),
            question=_question(logged.doc, context),
            choices=choices,
            gold=_gold(logged, choices, letters),
            prompt=context,
            continuations=(),
            scores=(),
            credit=credit,
            pick=pick,
            status=Status.ERRORED if credit is None else Status.UNPARSED if pick is None else Status.SCORED,
            answer=str(answer),
        )

    def _bare(self, continuation: str) -> str:
        """The choice's text: the continuation without the delimiter that joins it to the context."""
        return continuation.removeprefix(self.delimiter) if self.delimiter else continuation

    def _subject(self, doc: Mapping[str, Any]) -> str:
        value = doc.get("subject")
        return value if isinstance(value, str) and value else self.subject

    def _sample_id(self, logged: LoggedDoc) -> str:
        return f"{self.task}:{logged.doc_id}" if logged.doc_id is not None else logged.where

    def _status(self, pairs: Sequence[tuple[str, str]], scored: bool) -> Status:
        if not scored:
            return Status.ERRORED
        cut = any(self.trace.get(pair_digest(*pair), {}).get("num_truncated") for pair in pairs)
        return Status.TRUNCATED if cut else Status.SCORED


def hash_differs(logged: LoggedDoc) -> bool:
    """Whether the document's own hash is not that of its content: samples files have held other rows (P56)."""
    if not logged.doc_hash:
        return False
    text = json.dumps(dict(logged.doc), indent=2, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest() != logged.doc_hash


def prompt_differs(config: Mapping[str, Any], logged: LoggedDoc) -> bool:
    """Whether the text the config's own template gives is not at the prompt's end: a stale request cache (P57).

    False where it cannot be told: templates that are functions, chat formats, no jinja2.
    """
    template = config.get("doc_to_text")
    if not isinstance(template, str) or "{{" not in template or not logged.requests:
        return False
    try:
        import jinja2

        text = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True).from_string(template)
        rendered = text.render(**logged.doc)
    except Exception:  # a filter of lm-eval's own, a field that is not logged, jinja2 itself
        return False
    context = logged.requests[0][0]
    plain = not context.lstrip().startswith(("[", "<"))
    return plain and not context.rstrip().endswith(rendered.rstrip())


def _halves(pairs: list[tuple[str, str]], responses: Sequence[Any]) -> tuple[list[tuple[str, str]], Sequence[Any]]:
    """Conditional pairs, and the responses to the same continuations after the empty context where pmi asked."""
    half = len(pairs) // 2
    both = len(pairs) == 2 * half and half > 0
    if both and all(not context for context, _ in pairs[half:]) and any(context for context, _ in pairs[:half]):
        return pairs[:half], responses[half:]
    return pairs, ()


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list | tuple) and value else value


def _weight(logged: LoggedDoc, metric: str) -> float | None:
    value = logged.values.get(metric)
    return as_float(value[1]) if isinstance(value, list | tuple) and len(value) == 2 else None


def _question(doc: Mapping[str, Any], context: str) -> str:
    for name in _QUESTION_FIELDS:
        value = doc.get(name)
        if isinstance(value, Mapping):
            value = value.get("stem") or value.get("text")
        if isinstance(value, str) and value.strip():
            return value
    return context


def _choices(doc: Mapping[str, Any], scored: Sequence[str]) -> tuple[str, ...]:
    """The dataset's own choice texts where the document has as many as were scored, else the scored texts."""
    nested = doc.get("question")
    for holder in (doc, nested if isinstance(nested, Mapping) else {}):
        for name in _CHOICE_FIELDS:
            texts = _texts(holder.get(name))
            if texts and (not scored or len(texts) == len(scored)):
                return texts
    return tuple(scored)


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, Mapping):
        value = value.get("text") or list(value.values())
    if isinstance(value, list | tuple) and value:
        if all(isinstance(text, str) for text in value):
            return tuple(value)
        if all(isinstance(text, Mapping) and isinstance(text.get("text"), str) for text in value):
            return tuple(text["text"] for text in value)
    return ()


def _gold(logged: LoggedDoc, choices: Sequence[str], scored: Sequence[str]) -> int:
    """The right choice's original index; -1 where the log does not say one (no credit of ours can match it then)."""
    target = logged.target.strip()
    if target.lstrip("-").isdigit() and 0 <= int(target) < max(len(choices), 1):
        return int(target)
    found = _index_of(target, choices, scored)
    return -1 if found is None else found


def _index_of(text: str, choices: Sequence[str], names: Sequence[str]) -> int | None:
    bare = text.strip()
    for table in (names, choices):
        matches = [index for index, name in enumerate(table) if name.strip() == bare]
        if matches:
            return matches[0]
    inner = bare.strip("().*: ")
    return names.index(inner) if inner in names else None


def _one_prompt(contexts: Sequence[str]) -> str:
    return contexts[0] if len(set(contexts)) == 1 else "\x1e".join(contexts)
