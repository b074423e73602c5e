"""Every architecture beside the harnesses' own model classes on the same weights, each verb, edges included."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("inspect_ai")

from inspect_ai.model import GenerateConfig, get_model

from benchmarks.parity import Row, compare_model, instances, load, material
from benchmarks.peers import save_twin, stock_lm
from benchmarks.twins import ARCHITECTURES, make_twin
from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM
from llm.scoring.generation import generate
from llm.scoring.requests import GenerationRequest

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


@pytest.mark.parametrize("name", ["llama", "olmo2", "bloom"])
def test_p43_every_end_id_of_the_generation_config_ends_an_answer(name: str, tmp_path: Path) -> None:
    """Chat models have several. Here the second is a word of the answer, which stays in its text, as behind HFLM."""
    folder = tmp_path / "twin"
    make_twin(ARCHITECTURES[name], folder)
    ref = ARCHITECTURES[name].ref(folder)
    asked = instances("generate_until", [("Which is a liquid?", {"until": [], "max_gen_toks": 12})])
    model, tokenizer = load(ref)
    prompt_ids = tuple(tokenizer("Which is a liquid?").input_ids)
    (whole,) = generate(model, tokenizer, [GenerationRequest(prompt_ids=prompt_ids, max_new_tokens=12)])
    settings = json.loads((folder / "generation_config.json").read_text())
    settings["eos_token_id"] = [tokenizer.eos_token_id, whole.token_ids[4]]
    (folder / "generation_config.json").write_text(json.dumps(settings))
    (stock,) = stock_lm(folder).generate_until(asked, disable_tqdm=True)
    assert 0 < len(stock) < len(whole.text)
    assert LlamaLmEvalLM(*load(ref)).generate_until(asked, disable_tqdm=True) == [stock]
    door = get_model(f"decoder/{ref}", memoize=False, chat_template=False)
    assert asyncio.run(door.generate("Which is a liquid?", config=GenerateConfig(max_tokens=12))).completion == stock


def judge(compared: Iterable[Row]) -> list[Row]:
    rows = list(compared)
    assert {row.verb: row.peer for row in rows} == VERBS
    for row in rows:
        assert row.differ == row.outside == 0, row
        assert row.compared >= 2
    return rows
