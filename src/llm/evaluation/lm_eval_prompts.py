"""Stock lm-eval's texts, built without lm-eval: what `mmlu` and `arc_easy` of lm_eval 0.4.13 show the model.

The bytes equal those of lm-eval's own task objects (a test holds them together), so one prompt can be given to both
harnesses. Sources: lm_eval/tasks/mmlu/default/_default_template_yaml, tasks/arc/arc_easy.yaml, api/samplers.py.
Imports neither torch nor a harness.
"""

import random
import re
from collections.abc import Sequence

from llm.errors import InputError
from llm.evaluation.data import MMLU_LABELS, Item, load_fewshot, load_items
from llm.evaluation.prompts import Prompt

DEFAULT_FEWSHOT_SEED = 1234  # lm_eval/defaults.py


def render(item: Item, shots: Sequence[Item] = ()) -> Prompt:
    """The context and continuations of one item after `shots`, in the order given.

    MMLU asks for a letter (continuations ` A` to ` D`), ARC-Easy for the text of a choice.

    Raises:
        InputError: a task that lm-eval does not ask as multiple choice.
    """
    match item.task:
        case "mmlu":
            context = _description(item.subject) + "".join(map(_mmlu_shot, shots)) + _mmlu_question(item)
            return _prompt(context, MMLU_LABELS)
        case "arc_easy":
            context = "".join(map(_arc_shot, shots)) + _arc_question(item)
            return _prompt(context, item.choices)
    raise InputError(f"no lm-eval prompt for task {item.task!r}: there is one for mmlu and arc_easy")


def mmlu_shots(data: str, subject: str, num_fewshot: int) -> list[Item]:
    """The shots of every item of `subject`: its dev rows 0 to K-1 in file order (lm-eval's `first_n` sampler).

    Raises:
        InputError: fewer dev rows than asked for.
    """
    pool = load_fewshot("mmlu", data, subject)
    _check_pool(num_fewshot, len(pool), f"the dev split of MMLU subject {subject}")
    return pool[:num_fewshot]


def arc_shots(
    data: str, num_fewshot: int, *, seed: int = DEFAULT_FEWSHOT_SEED, limit: int | None = None
) -> list[list[Item]]:
    """For each ARC-Easy test item in order, the train rows that lm-eval draws as its shots.

    lm-eval samples them with one `random.Random(seed)` that runs on from item to item (`ContextSampler`), so the
    draw of an item depends on its place; `limit` stops after that many items and changes none of their draws.

    Raises:
        InputError: fewer train rows than asked for.
    """
    num_items = len(load_items("arc_easy", data, limit=limit))
    pool = load_fewshot("arc_easy", data)
    _check_pool(num_fewshot, len(pool), "the train split of ARC-Easy")
    if num_fewshot == 0:
        return [[] for _ in range(num_items)]
    draws = random.Random(seed)
    return [draws.sample(pool, num_fewshot) for _ in range(num_items)]


def page_counts(page: str) -> tuple[int, int]:
    """(words, UTF-8 bytes) of a WikiText page, the denominators of lm-eval's word and byte perplexity.

    Counted on the page as the data has it, before detokenising; words are what `\\s+` separates, the empty strings
    at both ends included (lm_eval/tasks/wikitext/preprocess_wikitext.py:42-44).
    """
    return len(re.split(r"\s+", page)), len(page.encode("utf-8"))


def _prompt(context: str, choice_texts: Sequence[str]) -> Prompt:
    return Prompt(
        context=context,
        continuations=tuple(f" {text}" for text in choice_texts),
        choice_texts=tuple(choice_texts),
    )


def _description(subject: str) -> str:
    return f"The following are multiple choice questions (with answers) about {subject.replace('_', ' ')}.\n\n"


def _mmlu_question(item: Item) -> str:
    lines = [f"{label}. {choice}" for label, choice in zip(MMLU_LABELS, item.choices, strict=True)]
    return "\n".join([item.question.strip(), *lines, "Answer:"])


def _mmlu_shot(item: Item) -> str:
    return f"{_mmlu_question(item)} {MMLU_LABELS[item.gold]}\n\n"


def _arc_question(item: Item) -> str:
    return f"Question: {item.question}\nAnswer:"


def _arc_shot(item: Item) -> str:
    return f"{_arc_question(item)} {item.choices[item.gold]}\n\n"


def _check_pool(num_fewshot: int, available: int, pool: str) -> None:
    if not 0 <= num_fewshot <= available:
        raise InputError(
            f"num_fewshot {num_fewshot} is out of range: {pool} has {available} rows, give 0 to {available}"
        )
