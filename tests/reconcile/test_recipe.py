"""The recipe's commands: parsed again, they put one protocol on both sides."""

import itertools
import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llm.models import load_tokenizer
from providers.lm_eval_decoder import main as lm_eval_main
from reconcile import reconcile_runs
from reconcile.cli import main
from reconcile.inspect_reader import read_inspect_run
from reconcile.ledger import Ledger
from reconcile.lm_eval_reader import read_lm_eval_run
from reconcile.options import RunOptions, native_protocol
from reconcile.page_ledger import PageLedger
from reconcile.recipe import Recipe, page_recipes, recipes
from reconcile.report.facts import RunFacts
from reconcile.report.records import read_records
from reconcile.runs import Protocol

REPOSITORY = Path(__file__).resolve().parents[2]


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


def test_lm_evals_own_command_reads_stock_tasks_or_those_that_the_run_wrote() -> None:
    about = replace(facts(), folder="runs/x", subjects=("anatomy", "virology"))
    stock, other = recipes(about, native_protocol("mmlu", "lm_eval"), native_protocol("mmlu", "inspect"))[::-1]
    assert stock.lm_eval is not None
    assert "--tasks mmlu --include_path runs/x/lm_eval/tasks --num_fewshot 5" in stock.lm_eval
    assert other.lm_eval is not None
    assert "--include_path runs/x/recipe/inspect_protocol" in other.lm_eval
    assert "-T template=inspect" in other.inspect
    for recipe in (stock, other):
        assert "subjects=anatomy,virology" in recipe.inspect
        assert "--subjects anatomy,virology" in recipe.prove
        assert "-M logits_dtype=bfloat16" in recipe.inspect


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a run may stand, in a process that both harnesses can be run in, with a store of its own."""
    pytest.importorskip("lm_eval")
    pytest.importorskip("inspect_ai")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", sys.argv)  # lm-eval's command line reads it
    return tmp_path / "out"


@pytest.mark.parametrize(
    "arguments",
    [
        "mmlu --subjects nutrition,philosophy --limit 2",
        "arc_easy --limit 12 --lm-eval-normalisation token --lm-eval-tie-break random",
    ],
)
def test_lm_evals_own_command_line_gives_the_other_sides_scores(
    arguments: str, tiny_checkpoint: Path, tmp_path: Path, out: Path
) -> None:
    """Both recipes by lm-eval's own command line: the logs it leaves agree with those of the side they copy."""
    assert main([*arguments.split(), "--model", str(tiny_checkpoint), "--out", str(out)]) == 0
    recorded = read_records(out / "records.jsonl.gz")
    ours, theirs = recorded.lm_eval.protocol, recorded.inspect.protocol
    found = {recipe.changed: recipe for recipe in recipes(recorded.facts, ours, theirs)}
    for changed, goal in (("lm_eval", recorded.inspect), ("inspect", recorded.lm_eval)):
        command = found[changed].lm_eval  # type: ignore[index]
        assert command is not None
        words = [*shlex.split(command)[3:], "--log_samples", "--output_path", str(tmp_path / changed)]
        assert lm_eval_main(words) == 0
        again = read_lm_eval_run(tmp_path / changed)
        assert again.protocol == replace(goal.protocol, readout="loglikelihood")
        tokens = load_tokenizer(str(tiny_checkpoint))  # lm-eval's own log counts none, and " A" is two of them here
        ledger = reconcile_runs(again, replace(goal, harness="inspect"), tokenizer=tokens, max_length=256).ledger
        assert isinstance(ledger, Ledger)
        assert ledger.accounted
        assert ledger.items.logged_lm_eval == ledger.items.logged_inspect
        assert not [part.name for part in ledger.components if part.exact and part.name != "rounding"]


def test_either_recipe_for_pages_closes_the_gap_in_bits_per_byte(
    tiny_checkpoint: Path, tmp_path: Path, out: Path
) -> None:
    """Run as they stand: both sides by one command, then for raw pages each harness by its own command line."""
    model = ["--model", str(tiny_checkpoint)]
    assert main(["wikitext", "--limit", "1", *model, "--out", str(out)]) == 0
    recorded = read_records(out / "records.jsonl.gz")
    ledger = reconcile_runs(recorded.lm_eval, recorded.inspect).ledger
    assert isinstance(ledger, PageLedger)
    assert ledger.bits_per_byte.gap != 0
    report = (out / "report.md").read_text()
    found = {recipe.changed: recipe for recipe in page_recipes(recorded.facts, "detokenised", "raw")}
    for changed, goal, text in (("lm_eval", recorded.inspect, "raw"), ("inspect", recorded.lm_eval, "detokenised")):
        recipe = found[changed]  # type: ignore[index]
        assert recipe.lm_eval is not None
        assert {recipe.prove, recipe.lm_eval, recipe.inspect} <= set(report.splitlines())
        assert f"-T text={text} " in recipe.inspect
        both = tmp_path / f"both_{changed}"
        assert main([*shlex.split(recipe.prove)[3:], "--out", str(both)]) == 0
        document = json.loads((both / "reconcile.json").read_text())
        assert document["bits_per_byte"]["exact"]["gap"] == "0"
        assert {side["text"] for side in document["perplexities"].values()} == {text}
        assert document["perplexities"]["lm_eval"]["nats"] == sum(page.nll for page in goal.pages)  # type: ignore[misc]
    raw = found["lm_eval"]  # of the two, the one whose lm-eval side is a task file of the recipe's own
    assert raw.lm_eval is not None
    nats = [page.nll for page in recorded.inspect.pages]
    own = tmp_path / "own"
    assert lm_eval_main([*shlex.split(raw.lm_eval)[3:], "--log_samples", "--output_path", str(own)]) == 0
    assert [page.nll for page in read_lm_eval_run(own).pages] == nats
    assert inspect_pages(raw.inspect, tmp_path / "logs") == nats


def inspect_pages(command: str, folder: Path) -> list[float | None]:
    """The nats of the pages in the log that an `inspect eval …` command leaves, run as it stands from the checkout."""
    words = [sys.executable, "-m", "inspect_ai", *shlex.split(command)[1:]]
    subprocess.run([*words, "--log-dir", str(folder), "--display", "none"], check=True, cwd=REPOSITORY)
    return [page.nll for page in read_inspect_run(next(folder.glob("*.eval"))).pages]


def test_generated_answers_have_no_recipe_for_lm_evals_side() -> None:
    generated = replace(native_protocol("mmlu", "inspect"), readout="generate")
    (only,) = recipes(facts(), native_protocol("mmlu", "lm_eval"), generated)
    assert only.changed == "inspect"
