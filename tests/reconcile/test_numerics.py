"""The noise of computing: arithmetic by hand, and a sample of a real run computed again."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from reconcile.cli import main
from reconcile.numerics import compare
from reconcile.runs import Protocol
from reconcile.synthetic import SyntheticItem, sample

RAW = Protocol(template="lm-eval", num_fewshot=0, normalisation="none", tie_break="first")


def samples(*rows, tokens=(1, 1)):
    return [
        sample(SyntheticItem(logprobs=row, num_tokens=tokens, gold=0, name=str(n)), template="lm-eval")
        for n, row in enumerate(rows)
    ]


def moved(before, *rows):
    return [
        replace(one, scores=tuple(replace(s, logprob=value) for s, value in zip(one.scores, row, strict=True)))
        for one, row in zip(before, rows, strict=True)
    ]


def test_only_what_moves_choices_apart_is_noise():
    everything = samples((-1.0, -1.25), (-1.0, -2.0), (-1.0, -1.0), (-1.0, -1.125))
    sampled = everything[:2]
    again = moved(sampled, (-1.5, -1.75), (-1.25, -2.0))  # a common shift; then a quarter of a nat apart
    line = compare(side="lm_eval", way="x", protocol=RAW, everything=everything, sampled=sampled, again=again)
    assert (line.num_items, line.num_requests, line.num_predictions) == (2, 4, 4)
    assert (line.max_difference, line.median_difference) == (0.5, 0.375)
    assert (line.noise, line.typical_noise) == (0.25, 0.125)
    assert (line.within_noise, line.within_typical) == (3, 2)
    assert line.picks_changed == 0


def test_a_changed_pick_is_counted_and_lies_within_the_noise():
    before = samples((-1.0, -1.25))
    line = compare(
        side="inspect", way="x", protocol=RAW, everything=before, sampled=before, again=moved(before, (-1.5, -1.25))
    )
    assert line.picks_changed == line.within_noise == 1
    assert line.noise == 0.5


def test_noise_is_in_the_units_of_the_sides_own_score():
    before = samples((-4.0, -8.0), tokens=(4, 4))
    per_token = replace(RAW, normalisation="token")
    line = compare(
        side="inspect",
        way="x",
        protocol=per_token,
        everything=before,
        sampled=before,
        again=moved(before, (-5.0, -8.0)),
    )
    assert (line.max_difference, line.noise, line.within_noise) == (1.0, 0.25, 0)


def test_a_run_computed_again(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lm_eval")
    pytest.importorskip("inspect_ai")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = tmp_path / "out"
    arguments = "arc_easy --limit 8 --numerics 5 --inspect-normalisation pmi"
    assert main([*arguments.split(), "--model", str(tiny_checkpoint), "--out", str(out)]) == 0
    lines = json.loads((out / "reconcile.json").read_text())["numerics"]
    assert [(line["way"], line["side"]) for line in lines] == [
        ("plain padded path", "lm_eval"),
        ("plain padded path", "inspect"),
        ("bfloat16", "lm_eval"),
        ("bfloat16", "inspect"),
    ]
    for line in lines:
        assert (line["num_items"], line["num_predictions"]) == (5, 8)
        assert 0 <= line["within_typical"] <= line["within_noise"] <= 8
        assert line["picks_changed"] <= 5
    padded, rounded = lines[:2], lines[2:]
    assert max(line["max_difference"] for line in padded) < 1e-4
    assert min(line["max_difference"] for line in rounded) > 1e-4
    assert "Numerics" in capfd.readouterr().out
    again = tmp_path / "again"
    assert main(["report", str(out), "--format", "json,md", "--out", str(again)]) == 0
    assert json.loads((again / "reconcile.json").read_text())["numerics"] == lines


def test_an_engine_of_a_harness_cannot_be_computed_again(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["arc_easy", "--numerics", "--lm-eval-model", "dummy"]) == 2
    assert "--numerics needs the decoder on both sides" in capfd.readouterr().err
