"""The recipe's commands: parsed again, they put one protocol on both sides."""

import itertools
import shlex
from dataclasses import replace

import pytest

from reconcile.cli import main
from reconcile.options import RunOptions, native_protocol
from reconcile.recipe import Recipe, recipes
from reconcile.report.facts import RunFacts
from reconcile.runs import Protocol


def facts(task: str = "mmlu") -> RunFacts:
    return RunFacts(
        task=task,
        model="a folder/with a space",
        model_fingerprint="f",
        dtype="float32",
        logits_dtype="bfloat16",
        data="sample",
        data_fingerprint="d",
        limit=4,
        seed=0,
        shared_store=True,
    )


def asked(command: str, monkeypatch: pytest.MonkeyPatch) -> RunOptions:
    """The options a `python -m reconcile …` command is understood as."""
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "reconcile"]
    seen: list[RunOptions] = []
    monkeypatch.setattr("reconcile.ledger_run.run_task", lambda options: seen.append(options) or 0)
    assert main(words[3:]) == 0
    return seen[0]


OVERRIDES = [
    dict(zip(("normalisation", "tie_break", "num_fewshot"), values, strict=True))
    for values in itertools.product(("none", "token", "pmi"), ("first", "random", "fractional"), (0, 5))
]


@pytest.mark.parametrize("task", ["mmlu", "arc_easy"])
@pytest.mark.parametrize("override", OVERRIDES, ids=lambda o: "-".join(map(str, o.values())))
def test_each_recipe_gives_both_sides_the_protocol_it_promises(
    task: str, override: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = replace(native_protocol(task, "lm_eval"), **override)  # type: ignore[arg-type]
    theirs = replace(native_protocol(task, "inspect"), seed=3)
    found = {recipe.changed: recipe for recipe in recipes(facts(task), ours, theirs)}
    assert same_protocol(found["inspect"], ours, monkeypatch)
    assert same_protocol(found["lm_eval"], theirs, monkeypatch)


def same_protocol(recipe: Recipe, goal: Protocol, monkeypatch: pytest.MonkeyPatch) -> bool:
    options = asked(recipe.prove, monkeypatch)
    assert (options.model, options.limit, options.logits_dtype) == ("a folder/with a space", 4, "bfloat16")
    assert not options.cache
    return options.lm_eval == goal and options.inspect == goal


def test_lm_evals_own_command_is_given_only_for_what_it_has_words_for() -> None:
    stock, other = recipes(facts(), native_protocol("mmlu", "lm_eval"), native_protocol("mmlu", "inspect"))[::-1]
    assert stock.lm_eval is not None
    assert "--tasks mmlu --num_fewshot 5" in stock.lm_eval
    assert other.lm_eval is None
    assert "-T template=inspect" in other.inspect


def test_pages_and_generated_answers_have_no_recipe_for_lm_evals_side() -> None:
    pages = native_protocol("wikitext", "lm_eval")
    assert recipes(facts("wikitext"), pages, pages) == ()
    generated = replace(native_protocol("mmlu", "inspect"), readout="generate")
    (only,) = recipes(facts(), native_protocol("mmlu", "lm_eval"), generated)
    assert only.changed == "inspect"
