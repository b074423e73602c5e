"""Against what stock lm-eval and its HFLM recorded on the default model and the real data."""

import json

import pytest

pytest.importorskip("lm_eval")

from benchmarks.oracle import compare
from llm.evaluation.harness.adapter import build_task_dict, evaluate
from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM
from llm.scoring.requests import TokenScores

pytestmark = pytest.mark.data


class Silent:
    """A scorer that asks no model: for tests of the prompts alone."""

    def score(self, requests, *, top_k=0):
        """The same score for all."""
        return [TokenScores(logprobs=(-1.0,) * len(r.continuation_ids), is_greedy=False) for r in requests]


@pytest.mark.parametrize(("name", "limit"), [("arc", 4), ("arc5", 1), ("cont", 3), ("mmlu", 1)])
def test_scores_and_predictions(shared_dir, default_model, name, limit):
    recorded = json.loads((shared_dir / "oracle" / f"{name}.json").read_text())
    if name == "mmlu":
        recorded["samples"] = dict(list(recorded["samples"].items())[:1])
    found = compare(LlamaLmEvalLM(*default_model), recorded, limit=limit)
    assert found["requests"] >= 4
    assert found["outside_tolerance"] == 0, found
    assert found["greedy_flags_differ"] == 0
    assert found["predictions_differ"] == 0


@pytest.mark.parametrize(
    ("name", "task", "shots", "limit"),
    [
        ("arc", "arc_easy", 0, 50),
        ("arc5", "arc_easy", 5, 30),
        ("mmlu", "mmlu_abstract_algebra", 5, 20),
        ("mmlu", "mmlu_high_school_geography", 5, 20),
        ("wiki", "wikitext", None, 3),
    ],
)
def test_our_generated_tasks_ask_what_stock_tasks_asked(shared_dir, default_model, name, task, shots, limit):
    """To the byte, the documents and their order included."""
    recorded = json.loads((shared_dir / "oracle" / f"{name}.json").read_text())["samples"][task][:limit]
    lm = LlamaLmEvalLM(*default_model, scorer=Silent())
    tasks = build_task_dict(task, str(shared_dir / "data"), num_fewshot=shots)
    samples = evaluate(lm, tasks, limit=limit, bootstrap_iters=0)["samples"][task]
    for ours, stock in zip(samples, recorded, strict=True):
        assert (ours["doc_id"], ours["doc_hash"]) == (stock["doc_id"], stock["doc_hash"])
        if name == "wiki":
            assert ours["arguments"] == [(stock["target"],)]
        else:
            assert [list(pair) for pair in ours["arguments"]] == stock["args"]
