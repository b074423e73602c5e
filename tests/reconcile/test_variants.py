"""Variants of a model load as models of their own, and the harnesses' orders of them are compared."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.variants import four_bits, write_variants
from reconcile.cli import main


def test_four_bits_are_fifteen_steps_of_each_block() -> None:
    matrix = torch.randn(3, 80, generator=torch.Generator().manual_seed(0))
    rounded = four_bits(matrix)
    assert rounded.shape == matrix.shape
    for row in rounded:
        for block in row.split(32):
            assert len(block.abs().unique()) <= 8
    scale = matrix[:, :32].abs().amax(dim=1) / 7
    assert ((rounded - matrix)[:, :32].abs() <= scale[:, None] / 2 + 1e-6).all()
    assert torch.equal(four_bits(rounded), rounded)
    assert torch.equal(four_bits(torch.zeros(2, 32)), torch.zeros(2, 32))


def test_the_order_of_six_variants(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lm_eval")
    pytest.importorskip("inspect_ai")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folders = write_variants(tmp_path / "variants", str(tiny_checkpoint), [1])
    models = [str(tiny_checkpoint), f"{tiny_checkpoint}@bfloat16", *map(str, folders)]
    assert main(["agreement", "--models", *models, "--limit", "8", "--out", str(tmp_path / "order")]) == 0
    document = json.loads((tmp_path / "order" / "reconcile.json").read_text())
    assert len(document["scores"]) == len(document["correlations"]) == 4
    assert len(document["matrix"]) == 8
    assert document["num_items"] == 8


def test_models_are_named_as_briefly_as_tells_them_apart(tmp_path: Path) -> None:
    from reconcile.agreement_run import _names

    models = [
        ("a/one", "float32", "float32"),
        ("a/one", "bfloat16", "float32"),
        ("a/two", "float32", "float32"),
        ("b/two", "float32", "float32"),
        ("c/three", "float32", "float32"),
    ]
    runs = []
    for number, (ref, dtype, logits_dtype) in enumerate(models):
        run = tmp_path / str(number)
        run.mkdir()
        model = {"ref": ref, "dtype": dtype, "logits_dtype": logits_dtype}
        (run / "reconcile.json").write_text(json.dumps({"model": model}))
        runs.append(run)
    assert _names(runs) == ["one float32", "one bfloat16", "a/two", "b/two", "three"]
    twice = _names([runs[4], runs[4]])
    assert twice == ["three", "three"]  # the same run named twice is refused where they are ranked
