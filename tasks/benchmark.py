"""Puts the tasks together: items, solver, scorer, metrics and the record of the protocol, for each benchmark."""

from collections.abc import Sequence
from typing import Any, get_args

from inspect_ai import Task
from inspect_ai.model import GenerateConfig, Model, get_model
from inspect_ai.scorer import Metric, accuracy, choice, grouped, perplexity, stderr
from inspect_ai.solver import generate

from llm.evaluation.data import data_fingerprint
from llm.evaluation.hub_layout import resolve_folder
from llm.evaluation.lm_eval_prompts import DEFAULT_FEWSHOT_SEED
from providers.inspect_errors import input_errors
from tasks.options import ChoiceOptions, check_member, check_whole, subject_list
from tasks.samples import PageText, choice_dataset, page_dataset
from tasks.scorer import likelihood_choice
from tasks.solver import choice_likelihoods, generated_choice

DEFAULT_MODEL = "decoder/smollm2-135m-instruct"
MAX_CONNECTIONS = 256
MAX_NEW_TOKENS = 64
"""A generated answer is one line, `ANSWER: A`; more is room for what models say around it."""

PAGES_DEFINED_BY = "Inspect's perplexity() over whole pages (this project's task)"


class BenchmarkTask(Task):
    """A task whose default model yields to one asked for.

    Inspect prefers a task's own model over `--model` (inspect_ai 0.3.285, _eval/loader.py:118), so the default is
    given only when Inspect asks while no other model is in force.
    """

    _own_model: Model | None = None

    @property
    def model(self) -> Model | None:
        """The model set on the task, else the default where the evaluation has none.

        Raises:
            InputError: the model that will be used is one of this project's and cannot be found.
        """
        asked = self._own_model or _model_in_force()
        used = asked if asked is not None else get_model(DEFAULT_MODEL)
        check = getattr(used.api, "check", None)
        if check is not None:
            check()
        return self._own_model if asked is not None else used

    @model.setter
    def model(self, value: Model | None) -> None:
        self._own_model = value


def choice_task(
    name: str,
    *,
    data: str,
    subjects: str | Sequence[str] | None,
    limit_per_subject: int | None,
    tokenizer: str | None,
    unconditional: bool,
    **settings: Any,
) -> Task:
    """A multiple-choice benchmark under the protocol that `settings` (the fields of `ChoiceOptions`) describe.

    `unconditional` scores every continuation after the empty context too, which normalisation `pmi` does anyway.
    `tokenizer`: see `tasks.solver.choice_likelihoods`.

    Raises:
        InputError: an argument or the data is at fault, in a form that Inspect prints as one sentence.
    """
    with input_errors():
        _check_limit(limit_per_subject)
        options = ChoiceOptions(**settings)
        chosen = subject_list(subjects)
        dataset = choice_dataset(name, data, options, subjects=chosen, limit_per_subject=limit_per_subject)
        about = _about(name, data, chosen, options.as_metadata()) | {"fewshot_rows": _fewshot_rows(name, options)}
    if options.readout == "generate":
        solver = generated_choice(name, data_source(data), options.num_fewshot)
        scorer, config = choice(), GenerateConfig(max_connections=MAX_CONNECTIONS, max_tokens=MAX_NEW_TOKENS)
    else:
        solver = choice_likelihoods(unconditional or options.normalisation == "pmi", tokenizer)
        scorer = likelihood_choice(options.normalisation, options.tie_break, options.seed, options.tie_atol)
        config = GenerateConfig(max_connections=MAX_CONNECTIONS)
    return BenchmarkTask(
        dataset=dataset, solver=solver, scorer=scorer, metrics=_metrics(name), config=config, metadata=about
    )


def page_task(*, data: str, limit: int | None, text: PageText) -> Task:
    """WikiText pages, raw or as lm-eval detokenises them, scored as Inspect's `perplexity()` scores them.

    Raises:
        InputError: as `choice_task`.
    """
    with input_errors():
        _check_limit(limit)
        check_member("text", text, get_args(PageText))
        dataset = page_dataset(data, limit, text)
        protocol = {"template": "inspect", "text": text, "num_fewshot": 0, "defined_by": PAGES_DEFINED_BY}
        about = _about("wikitext", data, None, protocol) | {"fewshot_rows": "none"}
    return BenchmarkTask(
        dataset=dataset,
        solver=generate(),
        scorer=perplexity(),
        config=GenerateConfig(prompt_logprobs=1, max_connections=MAX_CONNECTIONS),
        metadata=about,
    )


def data_source(data: str) -> str:
    """`data` in a form that means the same from any working directory."""
    return data if data in ("sample", "hub") else str(resolve_folder(data))


def _model_in_force() -> Model | None:
    """The model that the evaluation was given, if any."""
    try:
        model = get_model()
    except ValueError:
        return None
    return None if model.name == "none" else model


def _metrics(name: str) -> list[Metric | dict[str, list[Metric]]]:
    own: list[Metric | dict[str, list[Metric]]] = [accuracy(), stderr()]
    return [*own, grouped(accuracy(), "subject", all=False)] if name == "mmlu" else own


def _about(name: str, data: str, subjects: Sequence[str] | None, protocol: dict[str, Any]) -> dict[str, Any]:
    return {
        "protocol": protocol,
        "data": {
            "source": data_source(data),
            "fingerprint": data_fingerprint(name, data, subjects=subjects),
        },
    }


def _fewshot_rows(name: str, options: ChoiceOptions) -> str:
    """Which rows the shots are, for comparing with another log's."""
    count, split = options.num_fewshot, {"mmlu": "dev"}.get(name, "train")
    if not count:
        return "none"
    if name == "arc_easy" and options.template == "lm-eval":
        return f"{count} rows of {split} drawn anew for each item, seed {DEFAULT_FEWSHOT_SEED}"
    return f"{split} rows 0 to {count - 1}"


def _check_limit(limit: int | None) -> None:
    if limit is not None:
        check_whole("limit_per_subject", limit, least=1)
