"""What a report says of how to make two runs agree, by what is known of who answered."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from reconcile.decompose import decompose
from reconcile.ledger import Ledger
from reconcile.report.facts import RunFacts
from reconcile.report.recipe_section import recipe_section
from reconcile.report.sections import Section

NAMES = {"lm_eval": "lm-eval", "inspect": "Inspect"}
OWN = {"lm_eval": {"model_fingerprint": "f"}, "inspect": {"model_fingerprint": "f", "provider": "decoder"}}
OTHER = {"lm_eval": {"model": "gpt"}, "inspect": {"model": "openai/gpt"}}


@pytest.fixture
def said(make_recorded: Callable, make_questions: Callable) -> Callable[..., Section]:
    """`said(**facts)`: the section of two runs with facts around them."""

    def section(**changes: object) -> Section:
        recorded = make_recorded(make_questions(6, 1))
        ledger = decompose(recorded.lm_eval, recorded.inspect)
        assert isinstance(ledger, Ledger)
        about: RunFacts = replace(recorded.facts, **changes)
        return recipe_section(ledger, about, NAMES)

    return section


def test_logs_of_the_decoder_get_commands_without_files_that_no_run_left(said: Callable[..., Section]) -> None:
    found = said(name="mmlu", data="cais/mmlu", settings=OWN)
    assert found.commands[1].startswith("python -m reconcile mmlu --model a/model_of-tests --data hub ")
    assert not [command for command in found.commands if "--include_path" in command]


def test_a_run_in_a_folder_has_lm_evals_own_command_too(said: Callable[..., Section]) -> None:
    assert [one for one in said(folder="runs/x").commands if "--include_path runs/x/" in one]


@pytest.mark.parametrize(
    "facts",
    [
        {"name": "mmlu", "settings": OTHER},
        {"name": "mmlu", "settings": {**OWN, "inspect": OTHER["inspect"]}},
        {"folder": "runs/x", "model": "gpt2 (lm-eval) and openai/gpt (Inspect)", "settings": OTHER},
        {"name": "hellaswag", "task": "hellaswag", "settings": OWN},
        {"name": "mmlu", "data": "one and another", "settings": OWN},
    ],
)
def test_another_engine_is_told_what_to_set_on_which_side(said: Callable[..., Section], facts: dict) -> None:
    found = said(**facts)
    assert not found.commands
    assert found.brief
    first, *settings = found.sentences
    assert "No command is known" in first
    assert settings == [
        "For the protocol of lm-eval, set on the side of Inspect: template lm-eval (it is inspect), normalisation none "
        "(it is token) and tie-break first (it is random).",
        "For the protocol of Inspect, set on the side of lm-eval: template inspect (it is lm-eval), normalisation "
        "token (it is none) and tie-break random (it is first).",
    ]
