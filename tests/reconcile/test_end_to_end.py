"""Whole runs on a tiny random model: both harnesses really run, their logs are read, every gap closes."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from reconcile.cli import main

pytest.importorskip("lm_eval")
pytest.importorskip("inspect_ai")

ALWAYS = {
    *("schema_version", "task", "metric", "model", "data", "reported", "gap", "components", "num_items", "protocols"),
    *("versions", "cells", "exact", "gross", "one_at_a_time", "interactions", "intervals", "chance", "reported_raw"),
    "items_unexplained",
}
COMPONENTS = {"template", "length_normalisation", "tie_break", "coverage", "rounding", "unexplained"}


@pytest.fixture
def run(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command line on the tiny model and returns (exit code, reconcile.json, its folder)."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def go(arguments: str) -> tuple[int, dict[str, Any], Path]:
        out = tmp_path / "out"
        code = main([*arguments.split(), "--model", str(tiny_checkpoint), "--out", str(out)])
        return code, json.loads((out / "reconcile.json").read_text(), parse_constant=refuse), out

    return go


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def closes(document: dict[str, Any]) -> bool:
    return abs(document["gap"] - sum(document["components"].values())) <= 1e-12


def test_mmlu_natively(run: Any, capfd: pytest.CaptureFixture[str]) -> None:
    code, document, out = run("mmlu --subjects nutrition,philosophy --limit 3")
    assert code == 0
    assert document.keys() >= ALWAYS
    assert document["components"].keys() >= COMPONENTS
    assert closes(document)
    assert document["components"]["unexplained"] == 0
    assert document["items_unexplained"] == []
    assert document["num_items"]["common"] == 6
    assert (document["num_items"]["lm_eval_only"], document["num_items"]["inspect_only"]) == (0, 0)
    assert document["gap"] == pytest.approx(document["reported"]["lm_eval"] - document["reported"]["inspect"])
    assert document["model"]["fingerprint"]
    assert document["data"]["source"] == "sample"
    assert len(document["cells"]) == 8
    assert document["protocols"]["inspect"]["tie_break"] == "random"

    printed = capfd.readouterr()
    assert "MMLU-format sample" in printed.out
    assert "unexplained 0" in printed.out
    assert "] reconcile mmlu" in printed.err.splitlines()[0]

    with (out / "items.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 6
    assert (out / "report.md").read_text().startswith("# MMLU-format sample")
    assert list((out / "lm_eval").glob("results_*.json"))
    assert len(list((out / "lm_eval").glob("samples_*.jsonl"))) == 2
    assert len(list((out / "inspect").glob("*.eval"))) == 1
    assert not out.with_name("out.partial").exists()


def test_every_rule_stands_beside_the_protocols_own(run: Any) -> None:
    _, document, _ = run("arc_easy --limit 6")
    rules = document["statistics"]["normalisations"]
    for side in ("lm_eval", "inspect"):
        assert [rule["rule"] for rule in rules[side]] == ["none", "char", "byte", "token", "pmi"]
        assert {rule["num_items"] for rule in rules[side]} == {6}
        assert {rule["reason"] for rule in rules[side]} == {None}
    _, asked, _ = run("arc_easy --limit 6 --lm-eval-normalisation pmi --inspect-normalisation pmi")
    for side, score in asked["exact"]["common_scores"].items():
        assert rules[side][-1]["score"] == score


def test_one_protocol_on_both_sides_agrees_request_by_request(run: Any) -> None:
    code, document, _ = run(
        "arc_easy --limit 8 --no-cache "
        "--inspect-template lm-eval --inspect-normalisation none --inspect-tie-break first"
    )
    assert code == 0
    assert document["gap"] == 0
    agreement = document["agreement"]
    assert agreement["num_items"] == agreement["prediction_identical"] == 8
    assert agreement["num_requests"] == agreement["token_identical"] == agreement["logprob_identical"] >= 31
    assert agreement["max_difference"] == 0
    assert agreement["holds"] is True
    assert agreement["shared_store"] is False


def test_either_sides_protocol_is_proved_on_both(run: Any, capfd: pytest.CaptureFixture[str]) -> None:
    code, document, out = run("mmlu --subjects nutrition --limit 2 --prove")
    assert code == 0
    assert document["agreement"] is None  # the run itself had two protocols
    for side in ("lm_eval", "inspect"):
        proof = json.loads((out / "proof" / f"{side}_protocol" / "reconcile.json").read_text())
        assert proof["protocols"]["lm_eval"] == proof["protocols"]["inspect"] == document["protocols"][side]
        assert proof["gap"] == 0
        assert proof["agreement"]["holds"] is True
        assert proof["agreement"]["shared_store"] is False
        assert proof["agreement"]["num_requests"] == 8
    printed = capfd.readouterr().out
    assert "Proof: both by the protocol of lm-eval" in printed
    assert "Proof: both by the protocol of Inspect" in printed
    assert printed.count("8/8") == 4


def test_wikitext_in_both_units_with_pages_longer_than_the_context(run: Any) -> None:
    code, document, out = run("wikitext --limit 2")
    assert code == 0
    assert document.keys() >= ALWAYS
    assert closes(document)
    assert document["components"].keys() >= COMPONENTS
    bits = document["bits_per_byte"]
    assert bits["gap"] == pytest.approx(sum(bits["components"].values()), abs=1e-12)
    assert bits["lm_eval"] == pytest.approx(document["reported_raw"]["lm_eval"]["bits_per_byte,none"], rel=1e-12)
    assert document["reported"]["lm_eval"] > 3 * document["reported"]["inspect"]  # per word against per token
    with (out / "items.csv").open() as file:
        pages = list(csv.DictReader(file))
    assert {page["inspect_status"] for page in pages} == {"windowed"}
    assert {page["lm_eval_status"] for page in pages} == {"windowed"}
    about = document["settings"]["inspect"]
    assert about["defined_by"] == "Inspect's perplexity() over whole pages (this project's task)"
    assert about["fewshot_rows"] == document["settings"]["lm_eval"]["fewshot_rows"] == "none"


@pytest.mark.parametrize(
    "arguments",
    [
        "arc_easy --limit 5 --inspect-readout generate",
        "arc_easy --limit 8 --metric acc_norm --inspect-normalisation pmi --inspect-tie-break fractional",
        "arc_easy --limit 8 --lm-eval-normalisation pmi --lm-eval-tie-break last --num-fewshot 2",
        "arc_easy --limit 20 --dtype bfloat16 --logits-dtype bfloat16 --seed 3",
    ],
)
def test_other_protocols_close_too(run: Any, arguments: str) -> None:
    code, document, _ = run(arguments)
    assert code == 0
    assert closes(document)
    assert document["components"]["unexplained"] == 0
    assert ("readout" in document["components"]) is ("generate" in arguments)
    facts = ("model_fingerprint", "dtype", "eos_token", "max_length")
    assert all(document["settings"]["lm_eval"][name] == document["settings"]["inspect"][name] for name in facts)


def test_a_finished_run_of_the_same_name_is_replaced(run: Any) -> None:
    run("arc_easy --limit 2")
    code, document, out = run("arc_easy --limit 3")
    assert code == 0
    assert document["num_items"]["common"] == 3
    assert len(list((out / "inspect").glob("*.eval"))) == 1
    assert [path.name for path in out.parent.iterdir() if path.name.startswith("out")] == ["out"]


def test_the_logs_of_a_run_give_its_ledger_again(run: Any, tmp_path: Path) -> None:
    _, live, out = run("arc_easy --limit 6")
    again = tmp_path / "again"
    code = main(["logs", "--lm-eval", str(out / "lm_eval"), "--inspect", str(out / "inspect"), "--out", str(again)])
    document = json.loads((again / "reconcile.json").read_text(), parse_constant=refuse)
    assert code == 0
    assert document["components"] == live["components"]
    assert document["cells"] == live["cells"]
    assert document["protocols"] == live["protocols"]


def test_the_default_model_on_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = tmp_path / "out"
    assert main(["arc_easy", "--limit", "6", "--out", str(out)]) == 0
    document = json.loads((out / "reconcile.json").read_text(), parse_constant=refuse)
    assert closes(document)
    assert document["model"]["dtype"] == "float32"
    assert document["gross"]["tie_break"]["status"] == "inert"
