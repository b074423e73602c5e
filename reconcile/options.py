"""What a run is asked for: tasks, native protocols and their overrides, as plain records.

Pure Python: the command line is parsed and checked with this alone, before torch or a harness is imported.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from llm.errors import InputError
from reconcile.runs import Protocol

Task = Literal["mmlu", "arc_easy", "wikitext"]
PageText = Literal["detokenised", "raw"]

TASKS: tuple[str, ...] = ("mmlu", "arc_easy", "wikitext")
TEMPLATES = ("lm-eval", "inspect")
NORMALISATIONS = ("none", "char", "byte", "token", "pmi")
TIE_BREAKS = ("first", "last", "random", "fractional", "any", "none")
READOUTS = ("loglikelihood", "generate")
DTYPES = ("auto", "float32", "bfloat16", "float16")
LOGITS_DTYPES = ("float32", "bfloat16", "float16")
PAGE_TEXTS: tuple[PageText, ...] = ("detokenised", "raw")
METRICS = {"acc": "none", "acc_norm": "char", "acc_bytes": "byte", "acc_mutual_info": "pmi"}

_NUM_FEWSHOT = {"mmlu": 5, "arc_easy": 0, "wikitext": 0}


def native_protocol(task: str, harness: Literal["lm_eval", "inspect"]) -> Protocol:
    """The protocol a harness scores `task` with when nothing is overridden."""
    if harness == "lm_eval":
        return Protocol(template="lm-eval", num_fewshot=_NUM_FEWSHOT[task], normalisation="none", tie_break="first")
    return Protocol(template="inspect", num_fewshot=_NUM_FEWSHOT[task], normalisation="token", tie_break="random")


def with_overrides(protocol: Protocol, overrides: dict[str, object]) -> Protocol:
    """`protocol` with the given fields replaced; a field given as None keeps its native value."""
    given = {name: value for name, value in overrides.items() if value is not None}
    return replace(protocol, **given)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """One `python -m reconcile TASK` call, checked.

    `limit` is per sub-task, as lm-eval counts it. `cache` False means that nothing is shared between the two
    harnesses: no score store, an engine each. `out` None means a folder under runs/ named after what was asked.
    `fail_over` is the |gap| in points above which the exit code is 1 whatever else. `lm_eval_model` and `inspect_model`
    name models of the harnesses' own in place of the decoder; `tokenizer` is whose ids go to the latter, not text.
    `prove` runs either side's protocol on both sides as well. `numerics` is of how many items the requests are computed
    again another way. `quiet` prints the verdict alone. `lm_eval_text` and `inspect_text` are what pages are scored as:
    as lm-eval detokenises them, or as the data has them.
    """

    task: Task
    model: str
    data: str
    limit: int | None
    metric: str
    dtype: str
    logits_dtype: str
    device: str
    seed: int
    subjects: tuple[str, ...] | None
    cache: bool
    out: Path | None
    lm_eval: Protocol
    inspect: Protocol
    fail_over: float | None = None
    lm_eval_model: str | None = None
    lm_eval_model_args: str = ""
    inspect_model: str | None = None
    tokenizer: str | None = None
    prove: bool = False
    numerics: int | None = None
    quiet: bool = False
    lm_eval_text: PageText = "detokenised"
    inspect_text: PageText = "raw"

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise InputError(f"--limit is {self.limit}; it counts items per sub-task and must be at least 1")
        if self.inspect.readout == "generate" and self.inspect.template != "inspect":
            raise InputError(
                "--inspect-readout generate reads answers to Inspect's own template: leave out --inspect-template"
            )
        if self.lm_eval_model_args and self.lm_eval_model is None:
            raise InputError("--lm-eval-model-args without a model: name it with --lm-eval-model")
        if self.tokenizer is not None and self.inspect_model is None:
            raise InputError("--tokenizer is for an --inspect-model: the decoder has its own")
        if self.engines and "pmi" in (self.lm_eval.normalisation, self.inspect.normalisation):
            raise InputError(
                "normalisation pmi needs the decoder on both sides: leave out --lm-eval-model and --inspect-model"
            )
        if self.engines and self.numerics is not None:
            raise InputError(
                "--numerics needs the decoder on both sides: leave out --lm-eval-model and --inspect-model"
            )

    @property
    def engines(self) -> tuple[str, ...]:
        """The models of the harnesses' own that stand in place of the decoder."""
        return tuple(name for name in (self.lm_eval_model, self.inspect_model) if name is not None)

    @property
    def uses_decoder(self) -> bool:
        """Whether either side is this project's decoder."""
        return len(self.engines) < 2

    @property
    def models(self) -> str:
        """What a report calls the model: the decoder's reference, or what stands behind either harness."""
        if not self.engines:
            return self.model
        sides = (self.lm_eval_model or self.model, self.inspect_model or self.model)
        return f"{sides[0]} (lm-eval) and {sides[1]} (Inspect)"

    @property
    def source(self) -> str:
        """`data` in a form that means the same from any working directory."""
        return self.data if self.data in ("sample", "hub") else os.path.abspath(os.path.expanduser(self.data))

    def digest(self) -> str:
        """Ten hex digits naming what was asked: model, data and both protocols, not where the result goes."""
        asked = asdict(self)
        del asked["out"], asked["fail_over"], asked["prove"], asked["numerics"], asked["quiet"]
        text = json.dumps(asked, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def folder(self) -> Path:
        """Where the run's folder stands when it is finished."""
        return self.out if self.out is not None else Path("runs") / f"{self.task}-{self.digest()}"
