"""Benchmarks as data: what each one is, for both frameworks. Rendering lives elsewhere; nothing here needs a harness.

A user's own benchmark is another `EvalPreset`, or `dataclasses.replace` of one of these three.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from llm.errors import InputError

Template = Literal["lm-eval", "inspect"]
Normalisation = Literal["none", "char", "byte", "token", "pmi"]
TieBreak = Literal["first", "last", "random", "fractional", "any", "none"]
Readout = Literal["loglikelihood", "generate"]


@dataclass(frozen=True, kw_only=True)
class ScoringProtocol:
    """How one framework turns the model's answers into credits: wording, length rule, tie rule, readout."""

    template: Template
    normalisation: Normalisation = "none"
    tie_break: TieBreak = "first"
    readout: Readout = "loglikelihood"
    seed: int = 0
    tie_atol: float = 0.0


LM_EVAL_PROTOCOL = ScoringProtocol(template="lm-eval", normalisation="none", tie_break="first")
INSPECT_PROTOCOL = ScoringProtocol(template="inspect", normalisation="token", tie_break="random")


@dataclass(frozen=True)
class EvalPreset:
    """One benchmark, defined for lm-eval and for Inspect.

    `num_fewshot` None is the task's own default. `limit` counts items per sub-task, as lm-eval counts them (a
    fraction below 1 is a share of them, lm-eval only). `batch_size` bounds a generation batch; scores do not depend
    on it. `metrics` are lm-eval's names, the headline first. `options` holds further keyword arguments of lm-eval's
    `simple_evaluate`.

    Raises InputError when built from values that no benchmark has.
    """

    task: str
    num_fewshot: int | None = None
    batch_size: int | str = 8
    limit: int | float | None = None
    _: KW_ONLY
    metrics: tuple[str, ...] = ("acc",)
    subjects: tuple[str, ...] | None = None
    lm_eval: ScoringProtocol | None = LM_EVAL_PROTOCOL
    inspect: ScoringProtocol | None = INSPECT_PROTOCOL
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    description: str = ""

    def __post_init__(self) -> None:
        if not self.task or not isinstance(self.task, str):
            raise InputError(f"task is {self.task!r}: name an lm-eval task, such as 'mmlu'")
        if self.num_fewshot is not None and self.num_fewshot < 0:
            raise InputError(f"num_fewshot is {self.num_fewshot}: give 0 or more, or None for the task's own number")
        if self.limit is not None and self.limit <= 0:
            raise InputError(f"limit is {self.limit}: give a positive number of items per sub-task, or None for all")
        if not _is_batch_size(self.batch_size):
            raise InputError(f"batch_size is {self.batch_size!r}: give a positive number or 'auto'")

    def to_lm_eval_kwargs(self) -> dict[str, Any]:
        """Keyword arguments for lm-eval's `simple_evaluate`; what is None is left to lm-eval."""
        given = {"num_fewshot": self.num_fewshot, "batch_size": self.batch_size, "limit": self.limit}
        return {
            "tasks": [self.task],
            **{name: value for name, value in given.items() if value is not None},
            **self.options,
        }

    def to_inspect_args(self, *, data: str | None = None) -> dict[str, Any]:
        """The `-T` arguments that make this project's Inspect task of the benchmark run the same thing.

        What is None is left to the task. `data` is "sample", "hub" or a folder.
        """
        if isinstance(self.limit, float) and not self.limit.is_integer():
            raise InputError(f"limit is {self.limit}: Inspect takes a number of items, a fraction is lm-eval's only")
        given: dict[str, Any] = {"data": data}
        if self.inspect is not None:
            given |= {
                "subjects": ",".join(self.subjects) if self.subjects else None,
                "num_fewshot": self.num_fewshot,
                "template": self.inspect.template,
                "normalisation": self.inspect.normalisation,
                "tie_break": self.inspect.tie_break,
                "seed": self.inspect.seed,
                "tie_atol": self.inspect.tie_atol or None,
                "readout": self.inspect.readout,
            }
        given["limit_per_subject"] = None if self.limit is None else int(self.limit)
        return {name: value for name, value in given.items() if value is not None}


def _is_batch_size(value: int | str) -> bool:
    if isinstance(value, str):
        return (value.isdigit() and int(value) > 0) or value == "auto" or value.startswith("auto:")
    return not isinstance(value, bool) and value > 0


MMLU_PRESET = EvalPreset(
    task="mmlu",
    num_fewshot=5,
    description="57 subjects, four choices, 5-shot; the likelihood of the answer's letter",
)
ARCEASY_PRESET = EvalPreset(
    task="arc_easy",
    num_fewshot=0,
    metrics=("acc", "acc_norm"),
    description="grade-school science, 3 to 5 choices, 0-shot; the likelihood of the answer's text (lm-eval) or letter",
)
WIKITEXT_PRESET = EvalPreset(
    task="wikitext",
    num_fewshot=0,
    metrics=("bits_per_byte", "word_perplexity", "byte_perplexity"),
    lm_eval=None,
    inspect=None,
    description="WikiText-2 pages; the likelihood of each page, per word and byte of the original",
)

PRESETS: Mapping[str, EvalPreset] = MappingProxyType(
    {preset.task: preset for preset in (MMLU_PRESET, ARCEASY_PRESET, WIKITEXT_PRESET)}
)
