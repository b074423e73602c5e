"""What lm-eval makes of a run through our LM: the results, files and table of a stock run on the same weights."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from lm_eval import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.utils import get_results_filenames, get_sample_results_filenames, make_table

from benchmarks.peers import stock_lm
from benchmarks.twins import ARCHITECTURES, make_twin
from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM
from llm.models import load_model

TASKS = ["arc_easy", "mmlu_astronomy", "mmlu_astronomy_generative", "wikitext"]
OF_THE_RUN = ("config", "date", "start_time", "end_time", "total_evaluation_time_seconds")
OF_THE_MODEL = ("max_length", "model_source", "model_name", "model_name_sanitized", "tokenizer_pad_token")
EXACT = ("doc_id", "doc", "target", "arguments", "filter", "metrics", "doc_hash", "prompt_hash", "target_hash")


def saved(lm: Any, folder: Path) -> dict[str, Any]:
    """Run the stock tasks on the sample data, two items each, and save as lm-eval's command line does."""
    tracker = EvaluationTracker(output_path=str(folder))
    results = simple_evaluate(
        model=lm, tasks=TASKS, limit=2, evaluation_tracker=tracker, log_samples=True, gen_kwargs="max_gen_toks=16"
    )
    assert results is not None
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    for task in results["configs"]:
        tracker.save_results_samples(task_name=task, samples=samples[task])
    return results


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """{side: (results, folder)} of our LM and of stock HFLM."""
    base = tmp_path_factory.mktemp("stock-results")
    twin = base / "twin"
    make_twin(ARCHITECTURES["llama"], twin)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(Path(str(resources.files("llm.evaluation").joinpath("sample_data"))))
        ours = LlamaLmEvalLM(*load_model(str(twin), dtype="float32", device="cpu"))
        lms = {"ours": ours, "stock": stock_lm(twin, batch_size=1)}
        return {side: (saved(lm, base / side), base / side) for side, lm in lms.items()}


def files(folder: Path, pattern: str) -> list[str]:
    return sorted(str(path) for path in folder.rglob(pattern))


def test_lm_evals_own_tools_find_and_print_the_files(runs: Any) -> None:
    for results, folder in runs.values():
        written = files(folder, "*.json*")
        (name,) = get_results_filenames(written)
        assert len(get_sample_results_filenames(written)) == len(TASKS)
        assert make_table(json.loads(Path(name).read_text())) == make_table(results)


def test_the_results_are_a_stock_runs_but_for_the_model(runs: Any) -> None:
    ours, stock = (json.loads(Path(files(folder, "results_*.json")[0]).read_text()) for _, folder in runs.values())
    assert ours.keys() == stock.keys() - set(OF_THE_MODEL) | ours.keys() & set(OF_THE_MODEL)
    for key in stock.keys() - {*OF_THE_RUN, *OF_THE_MODEL, "results", "configs"}:
        assert ours[key] == stock[key], key
    for task, found in stock["results"].items():
        assert ours["results"][task].keys() == found.keys()
        for metric, value in found.items():
            expected = pytest.approx(value, rel=1e-4) if isinstance(value, float) else value
            assert ours["results"][task][metric] == expected, (task, metric)


def test_the_samples_are_a_stock_runs(runs: Any) -> None:
    ours, stock = (files(folder, "samples_*.jsonl") for _, folder in runs.values())
    assert len(ours) == len(stock) == len(TASKS)
    for mine, theirs in zip(ours, stock, strict=True):
        lines = [[json.loads(line) for line in Path(name).read_text().splitlines()] for name in (mine, theirs)]
        for a, b in zip(*lines, strict=True):
            assert a.keys() == b.keys()
            assert {key: a[key] for key in EXACT} == {key: b[key] for key in EXACT}
            assert numbers(a["filtered_resps"]) == pytest.approx(numbers(b["filtered_resps"]), abs=1e-3, rel=1e-5)
            assert [type(x) for x in leaves(a["resps"])] == [type(x) for x in leaves(b["resps"])]


def leaves(value: Any) -> list[Any]:
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, list) else [value]


def numbers(value: Any) -> list[float]:
    """The numbers in a response, as text or not; answers in words count as equal only by their own comparison."""
    found = []
    for leaf in leaves(value):
        try:
            found.append(float(leaf))
        except ValueError:
            found.append(float(sum(str(leaf).encode())))
    return found
