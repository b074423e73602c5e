"""Each harness run by itself on a tiny model: what it is given, what it writes, what goes beside its logs."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from llm.errors import InputError
from llm.evaluation.data import load_items
from llm.scoring.encoding import encode_pair, fit
from llm.scoring.requests import ScoreRequest, TokenScores
from reconcile import harnesses
from reconcile.log_values import pair_digest
from reconcile.logs import read_inspect_run, read_lm_eval_run
from reconcile.options import RunOptions, native_protocol
from reconcile.progress import Progress, stderr_to
from reconcile.run_folder import check_place, working_folder
from reconcile.runs import Status

pytest.importorskip("lm_eval")
pytest.importorskip("inspect_ai")


@pytest.fixture(scope="module")
def options(tiny_checkpoint: Path) -> RunOptions:
    return RunOptions(
        task="arc_easy",
        model=str(tiny_checkpoint),
        data="sample",
        limit=3,
        metric="acc",
        dtype="float32",
        logits_dtype="float32",
        device="cpu",
        seed=0,
        subjects=None,
        cache=False,
        out=None,
        lm_eval=native_protocol("arc_easy", "lm_eval"),
        inspect=native_protocol("arc_easy", "inspect"),
    )


@pytest.fixture(scope="module")
def loaded(options: RunOptions) -> harnesses.LoadedModel:
    return harnesses.load(options, Progress(StringIO()))


def test_nothing_is_shared_without_the_cache(options: RunOptions, loaded: harnesses.LoadedModel) -> None:
    assert loaded.lm_eval is not loaded.inspect
    assert loaded.lm_eval.scorer is not loaded.inspect.scorer


def test_the_cache_is_one_scorer_behind_one_store(
    options: RunOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shared = harnesses.load(replace(options, cache=True), Progress(StringIO()))
    assert shared.lm_eval is shared.inspect
    request = ScoreRequest(context_ids=(1, 5), continuation_ids=(7, 8))
    first = shared.lm_eval.score([request])
    again = harnesses.load(replace(options, cache=True), Progress(StringIO()))
    assert again.inspect.score([request]) == first
    assert (tmp_path / "harness-bridge" / "scores.sqlite").is_file()
    assert again.inspect.scorer.stats.num_hits == 1  # type: ignore[union-attr]


def test_lm_eval_runs_and_its_trace_names_what_was_scored(
    options: RunOptions, loaded: harnesses.LoadedModel, tmp_path: Path
) -> None:
    harnesses.run_lm_eval(loaded, options, tmp_path / "lm_eval")
    run = read_lm_eval_run(tmp_path / "lm_eval", protocol=options.lm_eval)
    assert run.replayed is True
    assert len(run.samples) == 3
    assert run.settings["model"] == options.model
    lines = [json.loads(line) for line in (tmp_path / "lm_eval" / "requests.jsonl").read_text().splitlines()]
    traced = {line["pair"]: line for line in lines}
    for sample in run.samples:
        for text, score in zip(sample.continuations, sample.scores, strict=True):
            asked = encode_pair(loaded.tokenizer, sample.prompt, text)
            line = traced[pair_digest(sample.prompt, text)]
            assert score.request_digest == line["request"] == asked.digest
            assert score.num_tokens == len(asked.continuation_ids)
            assert loaded.inspect.score([asked])[0].total == score.logprob


def test_inspect_runs_the_same_items_and_its_log_says_what_was_scored(
    options: RunOptions, loaded: harnesses.LoadedModel, tmp_path: Path
) -> None:
    run = read_inspect_run(harnesses.run_inspect(loaded, options, tmp_path / "inspect"))
    assert run.replayed is True
    assert run.protocol == options.inspect
    items = load_items("arc_easy", limit=3)
    assert sorted(sample.question for sample in run.samples) == sorted(item.question for item in items)
    for sample in run.samples:
        for text, score in zip(sample.continuations, sample.scores, strict=True):
            asked, num_cut = fit(encode_pair(loaded.tokenizer, sample.prompt, text), loaded.model.max_length)
            assert score.request_digest == asked.digest
            assert (sample.status is Status.TRUNCATED) == (num_cut > 0)
            assert loaded.lm_eval.score([asked])[0].total == score.logprob


def test_unconditional_scores_are_filled_in_where_a_harness_had_no_use_for_them(
    options: RunOptions, loaded: harnesses.LoadedModel, tmp_path: Path
) -> None:
    native = read_inspect_run(harnesses.run_inspect(loaded, options, tmp_path / "inspect"))
    bare = replace(
        native,
        samples=tuple(
            replace(sample, scores=tuple(replace(score, unconditional_logprob=None) for score in sample.scores))
            for sample in native.samples
        ),
    )
    filled = harnesses.fill_unconditional(bare, loaded)
    assert filled.samples == native.samples
    assert all(score.unconditional_logprob is not None for sample in filled.samples for score in sample.scores)


def test_the_empty_context_is_asked_for_wherever_the_decoders_likelihoods_are_read(options: RunOptions) -> None:
    def needs(**changes: Any) -> bool:
        return harnesses.needs_unconditional(replace(options, **changes))

    assert needs()
    assert not needs(task="wikitext")
    assert not needs(lm_eval_model="dummy")
    generating = replace(options.inspect, readout="generate")
    assert not needs(inspect=generating)
    assert needs(inspect=generating, lm_eval=replace(options.lm_eval, normalisation="pmi"))


def test_progress_expects_as_many_requests_as_a_side_scores(
    options: RunOptions, loaded: harnesses.LoadedModel, tmp_path: Path
) -> None:
    harnesses.run_lm_eval(loaded, options, tmp_path / "lm_eval")
    assert loaded.lm_eval.done == loaded.lm_eval.total
    harnesses.run_inspect(loaded, options, tmp_path / "inspect")
    assert loaded.inspect.done == loaded.inspect.total == 2 * loaded.lm_eval.total


def test_a_run_that_inspect_cannot_do_is_one_sentence(
    options: RunOptions, loaded: harnesses.LoadedModel, tmp_path: Path
) -> None:
    class Failing:
        def score(self, requests: Sequence[ScoreRequest], *, top_k: int = 0) -> list[TokenScores]:
            raise InputError("the disk is full: free some space")

    counter = harnesses.CountingScorer(Progress(StringIO()))
    counter.scorer = Failing()
    broken = replace(loaded, inspect=counter)
    with pytest.raises(InputError, match="the disk is full"):
        harnesses.run_inspect(broken, options, tmp_path / "inspect")


# progress and folders


def test_progress_is_lines_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr("reconcile.progress.time.monotonic", lambda: float(next(clock)))
    pipe = StringIO()
    progress = Progress(pipe)
    progress.begin("scoring")
    progress.advance(3, 10, "requests")
    progress.advance(5, None, "requests")
    progress.say("done")
    assert [line.split("] ")[1] for line in pipe.getvalue().splitlines()] == [
        "scoring",
        "scoring: 3 of 10 requests",
        "scoring: 5 requests",
        "done",
    ]
    assert "\x1b" not in pipe.getvalue()


def test_standard_error_goes_to_the_file_and_comes_back(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def harness() -> None:
        with stderr_to(tmp_path / "logs" / "stderr.txt"):
            print("a harness's own bar", file=sys.stderr)
            raise ValueError("through")

    with pytest.raises(ValueError, match="through"):
        harness()
    print("back", file=sys.stderr)
    assert (tmp_path / "logs" / "stderr.txt").read_text() == "a harness's own bar\n"
    assert capfd.readouterr().err == "back\n"


def test_a_run_that_fails_leaves_the_earlier_one_alone(tmp_path: Path) -> None:
    place = tmp_path / "run"
    with working_folder(place) as partial:
        (partial / "reconcile.json").write_text("first")

    def fail() -> None:
        with working_folder(place) as partial:
            (partial / "reconcile.json").write_text("second")
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        fail()
    assert (place / "reconcile.json").read_text() == "first"
    with working_folder(place) as partial:
        assert list(partial.iterdir()) == []
        (partial / "reconcile.json").write_text("third")
    assert (place / "reconcile.json").read_text() == "third"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("kind", ["file", "full", "below a file"])
def test_places_that_a_run_may_not_take(tmp_path: Path, kind: str) -> None:
    place: Any = tmp_path / "place"
    if kind == "full":
        place.mkdir()
        (place / "thesis.txt").write_text("years of work")
    else:
        place.write_text("a file")
        place = place if kind == "file" else place / "inner"
    with pytest.raises(InputError, match="place"):
        check_place(place)
