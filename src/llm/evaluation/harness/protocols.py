"""Overrides of lm-eval's own protocol: another wording, length rule or tie rule, scored by this project's rules.

lm-eval still builds the requests, runs them, averages and prints; what is put into its tasks are the functions made
here. A task that runs under them is *not stock* and says so. Nothing here imports lm-eval.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm.errors import InputError
from llm.evaluation.data import Item, item_key, load_fewshot, load_items
from llm.evaluation.prompts import Prompt
from llm.evaluation.rules import NORMALISATIONS, TIE_BREAKS, Normalisation, TieBreak, credit, normalise

Render = Callable[[Item, Sequence[Item]], Prompt]
Doc = Mapping[str, Any]

NOT_STOCK = "not stock"

# what stock lm-eval prints of each length rule, all with its own tie-break `first`
STOCK_METRICS: Mapping[str, Mapping[str, str]] = {
    "mmlu": {"none": "acc"},
    "arc_easy": {"none": "acc", "char": "acc_norm"},
}


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How lm-eval's side is to score: `render` None is lm-eval's own wording."""

    normalisation: Normalisation = "none"
    tie_break: TieBreak = "first"
    seed: int = 0
    tie_atol: float = 0.0
    render: Render | None = None

    def check(self, task: str, num_fewshot: int | None) -> None:
        """Raises InputError for a protocol that `task` cannot be scored under."""
        if self.normalisation not in NORMALISATIONS:
            raise InputError(f"normalisation is {self.normalisation!r}: give one of {', '.join(NORMALISATIONS)}")
        if self.tie_break not in TIE_BREAKS:
            raise InputError(f"tie_break is {self.tie_break!r}: give one of {', '.join(TIE_BREAKS)}")
        if num_fewshot is not None and num_fewshot < 0:
            raise InputError(f"num_fewshot is {num_fewshot}: give 0 or more, or None for the task's own number")
        if task == "wikitext" and (num_fewshot or self != Protocol(seed=self.seed)):
            raise InputError("wikitext scores pages, not choices: it takes no shots, length rule, tie rule or wording")

    def stock_metric(self, task: str) -> str | None:
        """The metric of stock lm-eval that is this protocol; None where lm-eval has none."""
        if self.render is not None or self.tie_break != "first" or self.tie_atol:
            return None
        return STOCK_METRICS.get(task, {}).get(self.normalisation)

    def described(self) -> dict[str, object]:
        """What a task says of itself in lm-eval's results."""
        wording = "lm-eval" if self.render is None else f"{self.render.__module__}.{self.render.__qualname__}"
        described: dict[str, object] = {
            "template": wording,
            "normalisation": self.normalisation,
            "tie_break": self.tie_break,
        }
        if self.tie_break == "random":
            described["seed"] = self.seed
        if self.tie_atol:
            described["tie_atol"] = self.tie_atol
        return described


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """The rendered items of one sub-task, found by the content of lm-eval's documents."""

    task: str
    subject: str
    by_key: Mapping[str, Prompt] = field(repr=False)

    @classmethod
    def load(cls, render: Render, task: str, data: str, subject: str, num_fewshot: int) -> "Prompts":
        """Render every test item after the first `num_fewshot` rows of the few-shot split."""
        subjects = [subject] if subject else None
        shots = load_fewshot(task, data, subject or None)[:num_fewshot] if num_fewshot else []
        items = load_items(task, data, subjects=subjects)
        prompts = {item_key(item.subject, item.question, item.choices): render(item, shots) for item in items}
        return cls(task=task, subject=subject, by_key=prompts)

    def of(self, doc: Doc) -> Prompt:
        """The prompt of a document."""
        return self.by_key[doc_key(self.task, self.subject, doc)]

    def choice_texts(self, doc: Doc) -> Sequence[str]:
        """The choice texts whose characters and bytes count."""
        return self.of(doc).choice_texts

    def task_functions(self) -> dict[str, object]:
        """What makes an lm-eval task ask these prompts and nothing around them.

        Functions, not methods: lm-eval copies a task's configuration deeply when it writes it down.
        """

        def doc_to_text(doc: Doc) -> str:
            return self.of(doc).context

        def doc_to_choice(doc: Doc) -> list[str]:
            return list(self.of(doc).continuations)

        words = {"doc_to_text": doc_to_text, "doc_to_choice": doc_to_choice}
        return {**words, "target_delimiter": "", "description": ""}


def doc_choices(task: str, doc: Doc) -> list[str]:
    """The choice texts of a dataset row, in its order."""
    choices = doc["choices"]
    return list(choices["text"] if task == "arc_easy" else choices)


def doc_key(task: str, subject: str, doc: Doc) -> str:
    """What an lm-eval document is matched to an item by: its content."""
    return item_key(subject, doc["question"], doc_choices(task, doc))


class NoShots:
    """Stands in for lm-eval's few-shot sampler where the rendered prompt holds the shots already."""

    def sample(self, n: int, eval_doc: Doc | None = None, df: object = None, **_: object) -> list[Doc]:
        """No examples, whatever is asked."""
        return []

    def set_rnd(self, rnd: int | None) -> "NoShots":
        """Nothing is drawn."""
        return self


def credit_function(
    protocol: Protocol,
    *,
    key_of: Callable[[Doc], str],
    gold_of: Callable[[Doc], int],
    texts_of: Callable[[Doc], Sequence[str]],
) -> Callable[[Doc, Sequence[tuple[float, bool]]], dict[str, float]]:
    """lm-eval's `process_results` for a protocol: the credit of an item, as the metric `acc`.

    `texts_of` gives the choice texts whose characters and bytes count. Under `pmi` the second half of the results
    belongs to the same continuations after the empty context, as lm-eval lays them out.
    """

    def process_results(doc: Doc, results: Sequence[tuple[float, bool]]) -> dict[str, float]:
        texts = texts_of(doc)
        scores = normalise(
            [result[0] for result in results[: len(texts)]],
            rule=protocol.normalisation,
            num_chars=[len(text) for text in texts],
            num_bytes=[len(text.encode()) for text in texts],
            num_tokens=_num_tokens(results[: len(texts)]) if protocol.normalisation == "token" else None,
            unconditional=[result[0] for result in results[len(texts) :]] or None,
        )
        value = credit(
            scores,
            gold_of(doc),
            tie_break=protocol.tie_break,
            seed=protocol.seed,
            key=key_of(doc),
            tie_atol=protocol.tie_atol,
        )
        return {"acc": float(value)}

    return process_results


def _num_tokens(results: Sequence[tuple[float, bool]]) -> list[int]:
    """The tokens scored for each choice, which this project's own model hands along with the score."""
    counts = [getattr(result, "num_tokens", 0) for result in results]
    if not all(counts):
        raise InputError(
            "normalisation 'token' needs the number of tokens of each choice, which this model does not report: "
            "evaluate a LlamaLmEvalLM, or choose none, char, byte or pmi"
        )
    return counts


def apply_protocol(loaded: Mapping[str, Any], protocol: Protocol, task: str, data: str, num_fewshot: int) -> None:
    """Put the protocol's functions into loaded tasks, and mark them and their groups as not stock."""
    for name, loaded_task in loaded["tasks"].items():
        subject = name.removeprefix("mmlu_") if task == "mmlu" else ""
        _apply_one(loaded_task, protocol, task, data, subject, num_fewshot)
    for group in loaded["groups"].values():
        group.alias = f"{group.alias or group.name} ({NOT_STOCK})"


def _apply_one(loaded_task: Any, protocol: Protocol, task: str, data: str, subject: str, num_fewshot: int) -> None:
    texts_of = loaded_task.doc_to_choice
    if protocol.render is not None:
        prompts = Prompts.load(protocol.render, task, data, subject, num_fewshot)
        texts_of = prompts.choice_texts
        for key, value in prompts.task_functions().items():
            loaded_task.set_config(key, value)
        loaded_task.sampler = NoShots()
    process_results = credit_function(
        protocol,
        key_of=lambda doc: doc_key(task, subject, doc),
        gold_of=loaded_task.doc_to_target,
        texts_of=texts_of,
    )
    loaded_task.set_config("process_results", process_results)
    alias = loaded_task.get_config("task_alias") or loaded_task.task_name
    loaded_task.set_config("task_alias", f"{alias} ({NOT_STOCK})")
    metadata = {**(loaded_task.get_config("metadata") or {}), "stock": False, "protocol": protocol.described()}
    loaded_task.set_config("metadata", metadata)
