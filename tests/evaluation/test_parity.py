"""Every architecture beside the harnesses' own model classes on the same weights, each verb, edges included."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("inspect_ai")

from benchmarks.parity import Row, compare_model, load, material
from benchmarks.peers import save_twin
from benchmarks.twins import ARCHITECTURES, make_twin

VERBS = {
    "loglikelihood": "HFLM",
    "loglikelihood_rolling": "HFLM",
    "generate_until": "HFLM",
    "chat prompts": "Inspect hf",
    "chat texts": "Inspect hf",
    "chat logprobs": "Inspect hf",
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_verb_equals_the_peers(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "twin"
    make_twin(ARCHITECTURES[name], folder)
    rows = judge(compare_model(name, load(ARCHITECTURES[name].ref(folder)), folder, *material()))
    assert all(row.largest <= 1e-4 for row in rows if row.verb != "loglikelihood_rolling"), rows


def test_the_default_model_equals_the_peers(default_model: Any, tmp_path: Path) -> None:
    save_twin("smollm2-135m-instruct", "float32", tmp_path / "twin")
    pairs, documents, prompts = material()
    few = pairs[:8] + pairs[-6:], documents[:2], prompts[:2]
    judge(compare_model("default", default_model, tmp_path / "twin", *few))


def judge(compared: Iterable[Row]) -> list[Row]:
    rows = list(compared)
    assert {row.verb: row.peer for row in rows} == VERBS
    for row in rows:
        assert row.differ == row.outside == 0, row
        assert row.compared >= 2
    return rows
