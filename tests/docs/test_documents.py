"""What the documents name exists, and what a user can ask for is named: options, parameters, arguments, tests."""

import argparse
import ast
import dataclasses
import inspect
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
GUIDE = (REPOSITORY / "docs" / "guides" / "evaluation.md").read_text(encoding="utf-8")
SIDE = re.compile(r"--(lm-eval|inspect)-(template|num-fewshot|normalisation|tie-break|seed|readout|tie-atol)$")


def commands() -> dict[str, argparse.ArgumentParser]:
    from reconcile.cli import _build_parser

    (choices,) = [action.choices for action in _build_parser()._actions if isinstance(action.choices, dict)]
    return choices


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {name for action in parser._actions for name in action.option_strings if name.startswith("--")} - {"--help"}


def section(title: str, rank: str = "##") -> str:
    """The text from a heading to the next one of its rank."""
    start = GUIDE.index(f"\n{rank} {title}\n")
    end = GUIDE.find(f"\n{rank} ", start + 1)
    return GUIDE[start : end if end > 0 else len(GUIDE)]


@pytest.mark.parametrize("name", ["mmlu", "arc_easy", "wikitext"])
def test_every_option_of_a_run_is_in_the_guide(name: str) -> None:
    text = section("`python -m reconcile`")
    for option in options(commands()[name]):
        side = SIDE.match(option)
        assert (f"`{side.group(2)}`" if side else f"`{option}") in text.replace(", `--", " `--"), option


def test_every_other_command_and_option_is_in_the_guide() -> None:
    text = section("Finished runs")
    for name, parser in commands().items():
        if name in ("mmlu", "arc_easy", "wikitext"):
            continue
        assert f"### `{name}`" in text
        for option in options(parser):
            assert f"`{option}" in text, f"{name} {option}"


def test_the_guide_names_no_option_that_is_none() -> None:
    known = {option for parser in commands().values() for option in options(parser)}
    text = section("`python -m reconcile`") + section("Finished runs")
    foreign = {"--model_args", "--log_samples"}  # lm-eval's
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*\w", text)) - foreign
    assert {name for name in named if name not in ("--lm-eval", "--inspect")} <= known


def test_every_task_parameter_is_in_the_guide() -> None:
    pytest.importorskip("inspect_ai")
    from tasks.arc_easy import arc_easy
    from tasks.mmlu import mmlu
    from tasks.wikitext import wikitext

    text = section("Task parameters", "###")
    for task in (mmlu, arc_easy, wikitext):
        for name in inspect.signature(task).parameters:
            assert f"`{name}`" in text, name


def test_every_model_argument_is_in_the_guide() -> None:
    from llm.evaluation.harness.model_args import ModelArgs
    from llm.evaluation.harness.presets import EvalPreset
    from providers.inspect_arguments import DecoderArguments

    places = {
        DecoderArguments: section("Model arguments", "###"),
        ModelArgs: section("lm-eval's command line"),
        EvalPreset: section("Presets", "###"),
    }
    for record, text in places.items():
        for field in dataclasses.fields(record):
            assert f"`{field.name}`" in text, f"{record.__name__}.{field.name}"


def test_every_key_of_the_document_is_in_the_guide() -> None:
    from reconcile.decompose import decompose
    from reconcile.report.document import ledger_document
    from reconcile.report.facts import RunFacts
    from reconcile.synthetic import SyntheticItem, run_of

    items = [SyntheticItem(name="a", logprobs=(-1.0, -2.0), gold=0)]
    facts = RunFacts(
        task="arc_easy",
        model="m",
        model_fingerprint=None,
        dtype=None,
        logits_dtype=None,
        data="sample",
        data_fingerprint=None,
        limit=None,
        seed=0,
        shared_store=False,
    )
    document = ledger_document(decompose(run_of("lm_eval", items), run_of("inspect", items)), facts)
    text = section("`reconcile.json`", "###")
    for key in document:
        assert f"`{key}`" in text, key


@pytest.mark.parametrize("name", ["pitfalls.md", "architecture.md"])
def test_every_test_and_file_named_exists(name: str) -> None:
    text = (REPOSITORY / "docs" / name).read_text(encoding="utf-8")
    cited = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?(?:::(\w+))?`", text)
    assert cited
    for path, *names in cited:
        source = (REPOSITORY / path).read_text(encoding="utf-8")
        for found in filter(None, names):
            assert re.search(rf"\b(def|class) {found}\b", source), f"{path}::{found}"
    for path in re.findall(r"`((?:src|providers|tasks|reconcile|benchmarks)/[\w/.]+)`", text):
        assert (REPOSITORY / path).exists(), path


def test_the_pitfalls_are_all_there() -> None:
    text = (REPOSITORY / "docs" / "pitfalls.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (P\d\d) ", text, re.MULTILINE) == [f"P{number:02}" for number in range(1, 64)]


FLOORS = {
    "src/llm/models": {"llm"},
    "src/llm/scoring": {"llm"},
    "src/llm/evaluation": {"llm"},
    "providers": {"llm", "providers"},
    "tasks": {"llm", "providers", "tasks"},
    "reconcile": {"llm", "providers", "tasks", "reconcile"},
}
"""Each floor and the packages of the house that it may import."""

HARNESSES = {"lm_eval", "inspect_ai"}


def imported(path: Path) -> set[str]:
    """The modules that a file imports anywhere, by full name."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("floor", FLOORS)
def test_no_arrow_runs_up(floor: str) -> None:
    house = {name for allowed in FLOORS.values() for name in allowed}
    order = ["llm.models", "llm.scoring", "llm.evaluation"]
    for path in (REPOSITORY / floor).rglob("*.py"):
        for name in imported(path):
            assert name.partition(".")[0] not in house - FLOORS[floor], f"{path} imports {name}"
            if floor.startswith("src/llm/"):
                own = order.index(floor.removeprefix("src/").replace("/", "."))
                above = order[own + 1 :]
                assert not name.startswith(tuple(above)), f"{path} imports {name}"
                guarded = path.name in ("lm_eval_lm.py", "adapter.py") and path.parent.name == "harness"
                assert guarded or name.partition(".")[0] not in HARNESSES, f"{path} imports {name}"
