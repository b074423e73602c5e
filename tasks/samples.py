"""Benchmark items as Inspect samples: what the model is shown, and what a log needs to be read again."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from inspect_ai.dataset import Dataset, MemoryDataset, Sample

from llm.errors import InputError
from llm.evaluation.data import Item, dataset_path, item_key, load_fewshot, load_items, load_pages
from llm.evaluation.lm_eval_prompts import arc_shots, page_counts, render
from llm.evaluation.prompts import Prompt
from tasks.options import ChoiceOptions
from tasks.rendering import letters, render_inspect

PageText = Literal["raw", "detokenised"]

_RENDERERS: Mapping[str, Callable[[Item, Sequence[Item]], Prompt]] = {"inspect": render_inspect, "lm-eval": render}


def choice_dataset(
    task: str,
    data: str,
    options: ChoiceOptions,
    *,
    subjects: Sequence[str] | None,
    limit_per_subject: int | None,
) -> Dataset:
    """The items of a benchmark as samples, in the data's order.

    A likelihood sample's input is the text that is conditioned on and its metadata holds the continuations; a
    generated one's input is the question, which Inspect's own solver lays out.

    Raises:
        InputError: the data lacks the task, a subject, or as many few-shot examples as asked for.
    """
    items = load_items(task, data, subjects=subjects, limit=limit_per_subject)
    shots = _shots_by_item(task, data, options, items)
    samples = [_sample(item, own, options) for item, own in zip(items, shots, strict=True)]
    return MemoryDataset(samples, name=_name(task, data), location=dataset_path(task, data))


def first_shots(task: str, data: str, subject: str, count: int) -> tuple[Item, ...]:
    """The first `count` examples of a subject, in file order.

    Raises:
        InputError: the data has fewer.
    """
    if not count:
        return ()
    found = load_fewshot(task, data, subject or None)[:count]
    if len(found) < count:
        place = f"{task} {subject}".strip()
        raise InputError(f"num_fewshot is {count} and the data has {len(found)} few-shot examples for {place}")
    return tuple(found)


def page_dataset(data: str, limit: int | None, text: PageText = "raw") -> Dataset:
    """WikiText pages as the data has them, or as lm-eval detokenises them, each with the counts of the original's words
    and bytes, as lm-eval takes them.

    Raises:
        InputError: detokenised pages without lm-eval, whose function makes them.
    """
    samples = []
    for doc_id, page in enumerate(load_pages(data, limit)):
        num_words, num_bytes = page_counts(page)
        metadata: dict[str, Any] = {
            "doc_id": doc_id,
            "item_key": item_key(None, page, ()),
            "num_words": num_words,
            "num_bytes": num_bytes,
            "text": text,
        }
        shown = page
        if text == "detokenised":
            shown, metadata["page"] = _detokenised(page), page
        samples.append(Sample(id=f"wikitext/{doc_id}", input=shown, metadata=metadata))
    return MemoryDataset(samples, name=_name("wikitext", data), location=dataset_path("wikitext", data))


def _detokenised(page: str) -> str:
    try:
        from lm_eval.tasks.wikitext.preprocess_wikitext import wikitext_detokenizer
    except ImportError as error:
        raise InputError(f"text 'detokenised' is lm-eval's, which is not installed ({error}): use raw") from error
    return str(wikitext_detokenizer({"page": page}))


def _shots_by_item(task: str, data: str, options: ChoiceOptions, items: Sequence[Item]) -> Sequence[Sequence[Item]]:
    """Each item's few-shot examples: the first ones, save that lm-eval draws ARC-Easy's anew for every item."""
    if task == "arc_easy" and options.template == "lm-eval":
        return arc_shots(data, options.num_fewshot, limit=len(items))
    by_subject = {
        subject: first_shots(task, data, subject, options.num_fewshot)
        for subject in dict.fromkeys(item.subject for item in items)
    }
    return [by_subject[item.subject] for item in items]


def _sample(item: Item, shots: Sequence[Item], options: ChoiceOptions) -> Sample:
    scored = None if options.readout == "generate" else _RENDERERS[options.template](item, shots)
    rendered = {} if scored is None else {"continuations": scored.continuations, "choice_texts": scored.choice_texts}
    return Sample(
        id=f"{item.subject or item.task}/{item.doc_id}",
        input=item.question if scored is None else scored.context,
        choices=list(item.choices),
        target=letters(item)[item.gold],
        metadata={
            "subject": item.subject,
            "doc_id": item.doc_id,
            "question": item.question,
            "labels": list(item.labels),
            "gold": item.gold,
            "item_key": item_key(item.subject, item.question, item.choices),
            **{name: list(texts) for name, texts in rendered.items()},
        },
    )


def _name(task: str, data: str) -> str:
    """What a log calls the data: the sample set never goes by the benchmark's name alone."""
    return f"{task} (sample)" if data == "sample" else task
