"""Logs that no code of this project wrote: lm-eval's own HFLM, and Inspect's published task behind its `hf` provider.

The model is the default one, its weights given to transformers; the data are the real ones. STOCK_LOG_ITEMS sets how
many items are asked (12 by default, for the suite's sake).
"""

import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from reconcile import reconcile_runs
from reconcile.cli import main
from reconcile.ledger import Ledger

pytest.importorskip("lm_eval")
pytest.importorskip("inspect_ai")

pytestmark = pytest.mark.data

NUM_ITEMS = int(os.environ.get("STOCK_LOG_ITEMS", "12"))
SAME_TOKEN = SAME_CHOICE = 1e-4
"""Nats by which two engines may differ in float32: in a scored token where HFLM's own float32 log-softmax errs by
nearly as much; in a whole choice, the sum over its tokens, where HFLM takes its log-softmax in float64.
"""


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model as a checkpoint that transformers loads."""
    from benchmarks.peers import transformers_twin

    folder = tmp_path_factory.mktemp("twin")
    model, tokenizer = transformers_twin("smollm2-135m-instruct", "float32")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def live(shared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A live run's folder: both harnesses on the decoder."""
    folder = tmp_path_factory.mktemp("live")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        data = str(shared_dir / "data")
        code = main(["arc_easy", "--data", data, "--limit", str(NUM_ITEMS), "--out", str(folder / "run")])
    assert code == 0
    return folder / "run"


@pytest.fixture(scope="module")
def hflm(twin: Path, shared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What stock lm-eval leaves with `--model hf --log_samples`."""
    return run_hflm(f"pretrained={twin},dtype=float32", shared_dir, tmp_path_factory.mktemp("hflm"))


def run_hflm(model_args: str, shared_dir: Path, folder: Path) -> Path:
    from lm_eval import simple_evaluate
    from lm_eval.loggers import EvaluationTracker

    from llm.evaluation.harness.adapter import build_task_dict

    tasks = build_task_dict("arc_easy", str(shared_dir / "data"))
    tracker = EvaluationTracker(output_path=str(folder))
    results = simple_evaluate(
        model="hf",
        model_args=model_args,
        device="cpu",
        batch_size=16,
        tasks=tasks.tasks,
        task_manager=tasks.task_manager,
        limit=NUM_ITEMS,
        log_samples=True,
        evaluation_tracker=tracker,
    )
    assert results is not None
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    tracker.save_results_samples(task_name="arc_easy", samples=samples["arc_easy"])
    return folder


def document_of(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "reconcile.json").read_text())
    return document


def test_stock_hflm_and_the_inspect_task_give_the_live_components(hflm: Path, live: Path, tmp_path: Path) -> None:
    out = tmp_path / "logs"
    code = main(["logs", "--lm-eval", str(hflm), "--inspect", str(live / "inspect"), "--out", str(out)])
    document, alive = document_of(out), document_of(live)
    assert code == 0
    assert document["items_unexplained"] == []
    assert document["num_items"]["common"] == NUM_ITEMS
    assert document["exact"]["components"].keys() == alive["exact"]["components"].keys()
    for name, exact in alive["exact"]["components"].items():
        if name != "rounding":
            assert Fraction(document["exact"]["components"][name]) == Fraction(exact), name
    assert [cell["exact"] for cell in document["cells"]] == [cell["exact"] for cell in alive["cells"]]
    assert any("counted with the tokenizer of" in note for note in document["notes"])


def test_the_two_engines_are_one_line_apart(hflm: Path, live: Path, tmp_path: Path) -> None:
    """Two lm-eval logs: the same requests, other logprobs. What that makes of the score is the line `engine`."""
    out = tmp_path / "engines"
    code = main(["logs", "--lm-eval", str(hflm), "--lm-eval", str(live / "lm_eval"), "--out", str(out)])
    document = document_of(out)
    assert code == 0
    assert document["components"]["template"] == 0
    assert document["components"]["engine"] == 0
    assert document["agreement"]["num_requests"] >= 3 * NUM_ITEMS
    assert document["agreement"]["prediction_identical"] == NUM_ITEMS
    assert document["agreement"]["max_difference"] > 0
    assert max(differences_a_token(hflm, live / "lm_eval")) < SAME_TOKEN


def test_with_a_float64_log_softmax_in_hflm_every_choice_is_the_same(
    twin: Path, live: Path, shared_dir: Path, tmp_path: Path
) -> None:
    arguments = f"pretrained={twin},dtype=float32,softmax_dtype=float64"
    hflm = run_hflm(arguments, shared_dir, tmp_path)
    assert max(difference for difference, _ in differences(hflm, live / "lm_eval")) < SAME_CHOICE


def differences_a_token(one: Path, other: Path) -> list[float]:
    return [difference / num_tokens for difference, num_tokens in differences(one, other)]


def differences(one: Path, other: Path) -> list[tuple[float, int]]:
    """Of every choice, by how many nats two lm-eval logs differ, and its tokens, which the second counts."""
    ledger = reconcile_runs(one, other).ledger
    assert isinstance(ledger, Ledger)
    return [
        (abs(ours.logprob - theirs.logprob), theirs.num_tokens)
        for left, right in ledger.items.pairs
        for ours, theirs in zip(left.scores, right.scores, strict=True)
        if theirs.num_tokens is not None
    ]


def test_inspects_published_task_is_explained_as_far_as_its_log_goes(
    hflm: Path, twin: Path, shared_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("inspect_evals")
    from inspect_ai import eval as inspect_eval
    from inspect_ai.model import get_model
    from inspect_evals.arc import arc_easy

    monkeypatch.chdir(shared_dir / "data")  # the task's Hub id is a folder here
    model = get_model("hf/twin", model_path=str(twin), device="cpu")
    (log,) = inspect_eval(
        arc_easy(), model=model, limit=NUM_ITEMS, max_tokens=16, log_dir=str(tmp_path / "inspect"), display="none"
    )
    assert log.status == "success"
    out = tmp_path / "logs"
    code = main(["logs", "--lm-eval", str(hflm), "--inspect", log.location, "--out", str(out)])
    document = document_of(out)
    assert abs(document["gap"] - sum(document["components"].values())) <= 1e-12
    assert document["num_items"]["common"] == NUM_ITEMS
    assert document["protocols"]["inspect"]["readout"] == "generate"
    readout = document["readout_split"]
    assert Fraction(readout["no_answer_found"]) == Fraction(document["exact"]["components"]["readout"])
    assert code == (1 if document["items_unexplained"] else 0)
    for item in document["items_unexplained"]:
        assert "needs the choices' likelihoods under that side's own template" in item["reason"]
    ledger = reconcile_runs(hflm, log.location).ledger
    assert float(ledger.gap) == document["gap"]
