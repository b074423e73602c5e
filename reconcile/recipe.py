"""Commands as text: those that make both harnesses score by one protocol, and the one that asks for given options."""

import shlex
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Literal

from reconcile.options import RunOptions, native_protocol
from reconcile.report.facts import RunFacts
from reconcile.runs import Protocol

Side = Literal["lm_eval", "inspect"]

FOLDER = "recipe"
"""Where a run's folder keeps the task files of protocols that stock lm-eval has not."""

_STOCK = {"mmlu": ("none",), "arc_easy": ("none", "char")}
_FLAGS = ("template", "num_fewshot", "normalisation", "tie_break")
_EXTRA = {"lm_eval": ("seed", "tie_atol"), "inspect": ("seed", "readout", "tie_atol")}
_DEFAULTS = {"dtype": "auto", "logits_dtype": "float32", "device": "auto", "seed": 0, "lm_eval_model_args": ""}

_STOCK_TASKS = "lm_eval/tasks"
STOCK_TEXT = "detokenised"
"""What lm-eval's own WikiText task scores."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to hold `changed` to the other side's protocol: a command that does and proves it, and each harness's own."""

    changed: Side
    prove: str
    inspect: str
    lm_eval: str | None


def recipes(facts: RunFacts, lm_eval: Protocol, inspect: Protocol) -> tuple[Recipe, ...]:
    """The recipe for either side's protocol; none for two different models, nor for a generated readout,
    which lm-eval's side has no words for.
    """
    if facts.task not in ("mmlu", "arc_easy") or " and " in facts.model:  # two models: each side has its own
        return ()
    found = []
    if inspect.readout == "loglikelihood":
        found.append(_recipe(facts, "lm_eval", inspect))
    found.append(_recipe(facts, "inspect", lm_eval))
    return tuple(found)


def page_recipes(facts: RunFacts, lm_eval: str, inspect: str) -> tuple[Recipe, ...]:
    """The recipe for either side's text of pages; none for two different models."""
    if facts.task != "wikitext" or " and " in facts.model:
        return ()
    return (_page_recipe(facts, "lm_eval", inspect), _page_recipe(facts, "inspect", lm_eval))


def _page_recipe(facts: RunFacts, changed: Side, text: str) -> Recipe:
    words = ["python", "-m", "reconcile", facts.task, *_common(facts)]
    words += ["--lm-eval-text", text, "--inspect-text", text, "--no-cache"]
    inspect = [*_inspect_words(facts), "-T", f"text={text}", *_inspect_data(facts)]
    owner: Side = "inspect" if changed == "lm_eval" else "lm_eval"
    place = _STOCK_TASKS if text == STOCK_TEXT else f"{FOLDER}/{protocol_folder(owner)}"
    return Recipe(
        changed=changed,
        prove=shlex.join(words),
        inspect=shlex.join(inspect),
        lm_eval=shlex.join([*_lm_eval_words(facts, place), *_lm_eval_limit(facts)]),
    )


def run_command(options: RunOptions) -> str:
    """The command line that asks for these options, but for where the folder stands, how much is printed and which
    gap fails.
    """
    words = ["python", "-m", "reconcile", options.task, "--model", options.model, "--data", options.data]
    if options.subjects is not None:
        words += ["--subjects", ",".join(options.subjects)]
    engines = ("lm_eval_model", "lm_eval_model_args", "inspect_model", "tokenizer")
    for name in ("limit", "dtype", "logits_dtype", "device", "seed", *engines, "numerics"):
        value = getattr(options, name)
        if value != _DEFAULTS.get(name):
            words += [f"--{name.replace('_', '-')}", str(value)]
    words += _overrides(options.task, "lm_eval", options.lm_eval, seed=options.seed)
    words += _overrides(options.task, "inspect", options.inspect, seed=options.seed)
    words += [flag for flag, given in (("--prove", options.prove), ("--no-cache", not options.cache)) if given]
    return shlex.join(words)


def is_stock(task: str, protocol: Protocol) -> bool:
    """Whether lm-eval's own task prints this protocol's score."""
    own = protocol.template == "lm-eval" and protocol.tie_break == "first" and not protocol.tie_atol
    return own and protocol.normalisation in _STOCK[task]


def protocol_folder(side: str) -> str:
    """The name of the folder of a side's protocol."""
    return f"{side}_protocol"


def _recipe(facts: RunFacts, changed: Side, goal: Protocol) -> Recipe:
    sides: dict[Side, Protocol] = {"lm_eval": goal, "inspect": goal}
    words = ["python", "-m", "reconcile", facts.task, *_common(facts)]
    for side, protocol in sides.items():
        words += _overrides(facts.task, side, protocol)
    return Recipe(
        changed=changed,
        prove=shlex.join([*words, "--no-cache"]),
        inspect=_inspect_command(facts, goal),
        lm_eval=_lm_eval_command(facts, "inspect" if changed == "lm_eval" else "lm_eval", goal),
    )


def _common(facts: RunFacts) -> list[str]:
    words = ["--model", facts.model, "--data", facts.data]
    if facts.subjects is not None:
        words += ["--subjects", ",".join(facts.subjects)]
    if facts.limit is not None:
        words += ["--limit", str(facts.limit)]
    if facts.dtype is not None:
        words += ["--dtype", facts.dtype]
    if facts.logits_dtype not in (None, "float32"):
        words += ["--logits-dtype", str(facts.logits_dtype)]
    return words


def _overrides(task: str, side: Side, protocol: Protocol, *, seed: int = 0) -> list[str]:
    """The options that turn a side's native protocol into this one, `seed` being what --seed says."""
    native = replace(native_protocol(task, side), seed=seed)
    words = []
    for name in (*_FLAGS, *_EXTRA[side]):
        value = getattr(protocol, name)
        if value != getattr(native, name):
            words += [f"--{side.replace('_', '-')}-{name.replace('_', '-')}", str(value)]
    return words


def _inspect_command(facts: RunFacts, protocol: Protocol) -> str:
    words = _inspect_words(facts)
    for name in (*_FLAGS, *_EXTRA["inspect"]):
        words += ["-T", f"{name}={getattr(protocol, name)}"]
    return shlex.join([*words, *_inspect_data(facts)])


def _inspect_words(facts: RunFacts) -> list[str]:
    words = ["inspect", "eval", _inspect_task(facts.task), "--model", f"decoder/{facts.model}"]
    for name, value in _dtypes(facts).items():
        words += ["-M", f"{name}={value}"]
    return words


def _inspect_task(task: str) -> str:
    """What `inspect eval` finds the task under: the name an installed package registers, from a checkout its file."""
    found = find_spec("tasks")
    installed = found is not None and "site-packages" in (found.origin or "")
    return f"tasks/{task}" if installed else f"tasks/{task}.py"


def _inspect_data(facts: RunFacts) -> list[str]:
    words = ["-T", f"data={facts.data}"]
    if facts.subjects is not None:
        words += ["-T", f"subjects={','.join(facts.subjects)}"]
    if facts.limit is not None:
        words += ["-T", f"limit_per_subject={facts.limit}"]
    return words


def _lm_eval_command(facts: RunFacts, owner: Side, protocol: Protocol) -> str | None:
    """lm-eval's own command line over the task files that the run left, `owner` being whose protocol it is."""
    if protocol.readout != "loglikelihood":
        return None
    place = _STOCK_TASKS if is_stock(facts.task, protocol) else f"{FOLDER}/{protocol_folder(owner)}"
    words = _lm_eval_words(facts, place)
    if is_stock(facts.task, protocol):
        words += ["--num_fewshot", str(protocol.num_fewshot)]
    return shlex.join([*words, *_lm_eval_limit(facts)])


def _lm_eval_words(facts: RunFacts, place: str) -> list[str]:
    arguments = {"model": facts.model, **_dtypes(facts)}
    words = ["python", "-m", "providers.lm_eval_decoder", "run", "--model", "decoder"]
    words += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
    return [*words, "--tasks", facts.task, "--include_path", f"{facts.folder or 'RUN'}/{place}"]


def _lm_eval_limit(facts: RunFacts) -> list[str]:
    return [] if facts.limit is None else ["--limit", str(facts.limit)]


def _dtypes(facts: RunFacts) -> dict[str, str]:
    """The dtypes to say, where they are not the default."""
    said = {"dtype": facts.dtype, "logits_dtype": facts.logits_dtype}
    return {name: value for name, value in said.items() if value not in (None, "float32")}
