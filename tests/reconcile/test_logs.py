"""Logs as harnesses write them: made here by stock lm-eval and by Inspect, then read, replayed and spoiled."""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from llm.errors import InputError
from llm.evaluation.data import item_key, load_items
from reconcile.library import reconcile_runs
from reconcile.logs import read_inspect_run, read_lm_eval_run
from reconcile.runs import Status

pytest.importorskip("lm_eval")
pytest.importorskip("inspect_ai")


# lm-eval


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stock lm-eval's logs of arc_easy and of two MMLU subjects, by a model that answers from a hash."""
    import zlib

    from lm_eval import simple_evaluate
    from lm_eval.api.model import LM
    from lm_eval.loggers import EvaluationTracker

    from llm.evaluation.harness.adapter import build_task_dict

    class Hashing(LM):
        def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> list[tuple[float, bool]]:
            return [(-1 - zlib.crc32(repr(request.args).encode()) / 2**29, False) for request in requests]

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
            return [-float(len(request.args[0])) for request in requests]

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
            raise NotImplementedError

    root = tmp_path_factory.mktemp("stock")
    for task, subjects in (("arc_easy", None), ("mmlu", ["nutrition", "philosophy"]), ("wikitext", None)):
        tasks = build_task_dict(task, "sample", subjects=subjects)
        tracker = EvaluationTracker(output_path=str(root / task))
        results = simple_evaluate(
            model=Hashing(), tasks=tasks.tasks, task_manager=tasks.task_manager, limit=9, evaluation_tracker=tracker
        )
        assert results is not None
        samples = results.pop("samples")
        tracker.save_results_aggregated(results=results, samples=samples)
        for name, rows in samples.items():
            tracker.save_results_samples(task_name=name, samples=rows)
    return root


@pytest.fixture
def copied(stock: Path, tmp_path: Path) -> Path:
    """A copy of the arc_easy run that a test may spoil."""
    shutil.copytree(stock / "arc_easy", tmp_path / "run")
    return tmp_path / "run"


def samples_file(run: Path) -> Path:
    (found,) = run.rglob("samples_*")
    return found


def results_file(run: Path) -> Path:
    (found,) = run.rglob("results_*.json")
    return found


def rewrite(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes every logged sample in place."""
    path = samples_file(run)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        change(record)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_stock_run_replays_to_the_bit_and_is_keyed_by_content(stock: Path) -> None:
    run = read_lm_eval_run(stock / "arc_easy")
    items = load_items("arc_easy", limit=9)
    assert run.headline == "acc,none"
    assert run.replayed is True
    assert [sample.key.digest for sample in run.samples] == [
        item_key(item.subject, item.question, item.choices) for item in items
    ]
    assert [sample.gold for sample in run.samples] == [item.gold for item in items]
    assert [sample.choices for sample in run.samples] == [item.choices for item in items]
    assert sum((sample.credit or Fraction(0) for sample in run.samples), Fraction(0)) / 9 == Fraction(
        run.reported["acc,none"]
    ).limit_denominator(9)
    first = run.samples[0]
    assert [score.num_chars for score in first.scores] == [len(choice) for choice in first.choices]
    assert first.scores[0].num_tokens is None
    assert run.stderr is not None


def test_acc_norm_is_the_char_rule(stock: Path) -> None:
    run = read_lm_eval_run(stock / "arc_easy", metric="acc_norm")
    assert (run.headline, run.protocol.normalisation, run.replayed) == ("acc_norm,none", "char", True)


def test_a_group_is_averaged_by_size_and_read_by_its_exact_sub_tasks(stock: Path) -> None:
    run = read_lm_eval_run(stock / "mmlu")
    assert (run.task, run.averaging, run.replayed) == ("mmlu", "micro", True)
    assert {sample.subject for sample in run.samples} == {"nutrition", "philosophy"}
    assert len(run.samples) == 18
    one = read_lm_eval_run(stock / "mmlu", task="mmlu_nutrition")
    assert {sample.subject for sample in one.samples} == {"nutrition"}
    assert len(one.samples) == 9


def test_pages_carry_lm_evals_own_counts(stock: Path) -> None:
    run = read_lm_eval_run(stock / "wikitext")
    assert run.pages
    total = sum(page.nll or 0.0 for page in run.pages)
    words = sum(page.num_words for page in run.pages)
    assert math.exp(total / words) == pytest.approx(run.reported["word_perplexity,none"], rel=1e-12)
    assert {page.text for page in run.pages} == {"detokenised"}


def test_older_spellings_read_the_same(copied: Path, stock: Path) -> None:
    """P55: one JSON list, arguments as lists, numbers as numbers, metrics without a filter, legacy file names."""
    path = samples_file(copied)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        record["arguments"] = [[pair["arg_0"], pair["arg_1"]] for pair in record["arguments"].values()]
        record["filtered_resps"] = [[float(nats), greedy == "True"] for nats, greedy in record["filtered_resps"]]
        del record["filter"]
    path.unlink()
    (path.parent / "pretrained__x_arc_easy.jsonl").write_text(json.dumps(records, indent=2))
    results = json.loads(results_file(copied).read_text())
    for name, metrics in results["results"].items():
        results["results"][name] = {key.replace(",none", ""): value for key, value in metrics.items()}
    results_file(copied).unlink()
    (path.parent / "results.json").write_text(json.dumps(results))
    old, new = read_lm_eval_run(copied), read_lm_eval_run(stock / "arc_easy")
    assert (old.headline, old.replayed) == ("acc", True)
    assert [sample.scores for sample in old.samples] == [sample.scores for sample in new.samples]
    assert not any(score.is_greedy for sample in old.samples for score in sample.scores)  # "False" is not true


def test_copies_for_other_filters_are_left_out(copied: Path) -> None:
    path = samples_file(copied)
    lines = path.read_text().splitlines()
    more = [json.dumps(json.loads(line) | {"filter": "strict", "acc": 0.0}) for line in lines]
    path.write_text("\n".join([*lines, *more]) + "\n")
    assert len(read_lm_eval_run(copied).samples) == len(lines)


def test_wrong_doc_ids_are_overruled_by_content(copied: Path, stock: Path) -> None:
    """P56: ids logged beside other documents."""
    rewrite(copied, lambda record: record.update(doc_id=99 - record["doc_id"], doc_hash="0" * 64))
    spoiled, whole = read_lm_eval_run(copied), read_lm_eval_run(stock / "arc_easy")
    assert [sample.key for sample in spoiled.samples] == [sample.key for sample in whole.samples]
    assert any("9 documents do not have the hash" in note for note in spoiled.notes)


def test_samples_that_hold_another_prompt_than_the_config_are_believed_and_said(copied: Path) -> None:
    """P57: a stale request cache."""

    def stale(record: dict[str, Any]) -> None:
        for pair in record["arguments"].values():
            pair["arg_0"] = pair["arg_0"].replace("Question:", "Q:")

    rewrite(copied, stale)
    run = read_lm_eval_run(copied)
    assert run.samples[0].prompt.startswith("Q:")
    assert any("prompts differ from the task's own template" in note for note in run.notes)


def test_bare_infinity_and_nan_are_read_and_text_is_left_alone(copied: Path) -> None:
    """P59."""

    def spoil(record: dict[str, Any]) -> None:
        record["filtered_resps"][0][0] = -math.inf
        record["filtered_resps"][1][0] = math.nan
        record["doc"]["question"] = "NaN or Infinity?"

    rewrite(copied, spoil)
    assert "-Infinity" in samples_file(copied).read_text()
    sample = read_lm_eval_run(copied).samples[0]
    assert sample.scores[0].logprob == -math.inf
    assert math.isnan(sample.scores[1].logprob)
    assert sample.question == "NaN or Infinity?"


def test_a_value_above_zero_is_no_log_probability(copied: Path) -> None:
    rewrite(copied, lambda record: record["filtered_resps"][2].__setitem__(0, "0.25"))
    with pytest.raises(InputError, match=r"0\.25, not a log-probability"):
        read_lm_eval_run(copied)


def test_a_file_cut_short_is_used_and_flagged(copied: Path) -> None:
    path = samples_file(copied)
    path.write_text(path.read_text()[:-400])
    run = read_lm_eval_run(copied)
    assert len(run.samples) == 8
    assert any("partial: arc_easy logs 8 of 9 documents" in note for note in run.notes)
    assert run.replayed is False


def spoil_results(run: Path) -> None:
    results_file(run).write_text(results_file(run).read_text()[:500])


def spoil_middle(run: Path) -> None:
    lines = samples_file(run).read_text().splitlines()
    lines[3] = lines[3][:50]
    samples_file(run).write_text("\n".join(lines) + "\n")


def drop_samples(run: Path) -> None:
    samples_file(run).unlink()


def empty_results(run: Path) -> None:
    results_file(run).write_text('{"results": {}}')


def second_model(run: Path) -> None:
    shutil.copytree(results_file(run).parent, run / "another-model")


@pytest.mark.parametrize(
    ("spoil", "names"),
    [
        (spoil_results, "damaged or unfinished"),
        (spoil_middle, r":4 is damaged"),
        (drop_samples, "--log_samples"),
        (empty_results, "reports no task"),
        (second_model, "several runs or models"),
    ],
)
def test_damaged_logs_are_one_clear_sentence(copied: Path, spoil: Callable[[Path], None], names: str) -> None:
    spoil(copied)
    with pytest.raises(InputError, match=names):
        read_lm_eval_run(copied)


def test_choices_of_a_metric_or_task_that_is_not_there(copied: Path) -> None:
    with pytest.raises(InputError, match="no metric 'f1'"):
        read_lm_eval_run(copied, metric="f1")
    with pytest.raises(InputError, match="no task 'boolq'"):
        read_lm_eval_run(copied, task="boolq")


# Inspect


QUESTIONS = [
    ("What is wet?", ["water", "sand", "smoke"], 0),
    ("What is hot?", ["ice", "fire", "snow", "fog"], 1),
    ("What is hard?", ["wool", "butter", "stone", "milk"], 2),
    ("What is hard?", ["wool", "butter", "stone", "milk"], 2),
]


def answers(*texts: str) -> Iterator[Any]:
    """Outputs of a mock model, with their usage so that nothing is downloaded to count tokens."""
    from inspect_ai.model import ModelOutput, ModelUsage

    for text in texts:
        output = ModelOutput.from_content("mockllm/model", text)
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        yield output


def inspect_log(folder: Path, *texts: str, shuffle: bool = False, **settings: Any) -> Path:
    """The log of Inspect's own multiple_choice() and choice() over QUESTIONS."""
    from inspect_ai import Task
    from inspect_ai import eval as inspect_eval
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import get_model
    from inspect_ai.scorer import choice
    from inspect_ai.solver import multiple_choice

    dataset = MemoryDataset(
        [Sample(input=question, choices=list(choices), target="ABCD"[gold]) for question, choices, gold in QUESTIONS]
    )
    if shuffle:
        dataset.shuffle_choices(seed=3)
    (log,) = inspect_eval(
        Task(dataset=dataset, solver=multiple_choice(), scorer=choice(), name="quiz", **settings),
        model=get_model("mockllm/model", custom_outputs=list(answers(*texts))),
        log_dir=str(folder),
        display="none",
        max_connections=1,
        max_samples=1,
    )
    return Path(log.location)


@pytest.fixture(scope="module")
def quiz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quiz")
    return inspect_log(folder, "ANSWER: A", "ANSWER: D", "C) stone", "ANSWER: C")


def test_a_generated_log_keeps_unparsed_apart_from_wrong(quiz: Path) -> None:
    run = read_inspect_run(quiz)
    assert (run.headline, run.reported["accuracy"], run.replayed) == ("accuracy", 0.5, True)
    assert run.protocol.readout == "generate"
    assert [sample.status for sample in run.samples] == [Status.SCORED, Status.SCORED, Status.UNPARSED, Status.SCORED]
    assert [sample.pick for sample in run.samples] == [0, 3, None, 2]
    assert [sample.gold for sample in run.samples] == [0, 1, 2, 2]
    assert [sample.key.occurrence for sample in run.samples] == [0, 0, 0, 1]
    assert "A) water" in run.samples[0].prompt


def test_answers_that_a_limit_ended_are_told_from_those_that_name_no_choice(quiz: Path, tmp_path: Path) -> None:
    """The first was found before the tokens ran out, the second never begun, the third ran out of tokens."""
    from inspect_ai.log import EvalSampleLimit, read_eval_log, write_eval_log

    log = read_eval_log(str(quiz))
    assert log.samples is not None
    found, never, cut, _ = log.samples
    found.output.choices[0].stop_reason = "max_tokens"
    never.limit, never.output.choices = EvalSampleLimit(type="time", limit=1), []
    assert never.scores is not None
    never.scores["choice"].answer = ""
    cut.output.choices[0].stop_reason = "model_length"
    write_eval_log(log, str(tmp_path / "cut.eval"))
    run, plain = read_inspect_run(tmp_path / "cut.eval"), read_inspect_run(quiz)
    assert [sample.status for sample in run.samples] == [*[Status.CUT_OFF] * 3, Status.SCORED]
    assert [sample.pick for sample in run.samples] == [0, None, None, 2]
    assert [sample.credit for sample in run.samples] == [sample.credit for sample in plain.samples]
    assert reconcile_runs(run, plain).ledger.notes == (
        "the first Inspect run: 3 of 4 generated answers were cut off: a limit on tokens or on the sample ended them; "
        "no answer was found in 2 of these",
    )


@pytest.mark.parametrize(("reducer", "score"), [("mean", 2 / 3), ("mode", 1.0)])
def test_epochs_are_reduced_as_the_log_says(tmp_path: Path, reducer: str, score: float) -> None:
    """P33: 1, 1, 0 each time."""
    from inspect_ai import Epochs

    right = [f"ANSWER: {'ABCD'[gold]}" for _, _, gold in QUESTIONS]
    texts = [*right, *right, *["ANSWER: none"] * 4]  # epoch by epoch
    run = read_inspect_run(inspect_log(tmp_path, *texts, epochs=Epochs(3, reducer)))
    assert run.reported["accuracy"] == pytest.approx(score)
    assert run.replayed is True
    assert len(run.samples) == 4
    assert {sample.credit for sample in run.samples} == {Fraction(score).limit_denominator(3)}
    assert any("3 epochs" in note for note in run.notes)


def test_shuffled_choices_are_compared_by_original_index(quiz: Path, tmp_path: Path) -> None:
    """P31."""
    plain = read_inspect_run(quiz)
    shuffled = read_inspect_run(inspect_log(tmp_path, *["ANSWER: A"] * 4, shuffle=True))
    assert [s.choices for s in shuffled.samples] != [s.choices for s in plain.samples]
    ledger = reconcile_runs(plain, shuffled).ledger
    assert ledger.num_items["common"] == 4
    picked = [pair[1].choices[pair[1].pick or 0] for pair in ledger.items.pairs]
    assert picked == [sample.choices[0] for sample in shuffled.samples]
    assert [pair[0].choices for pair in ledger.items.pairs] == [pair[1].choices for pair in ledger.items.pairs]


def test_errored_samples_leave_the_denominator_and_are_said(tmp_path: Path) -> None:
    """P32: the mock runs out of answers on the last sample."""
    run = read_inspect_run(inspect_log(tmp_path, *["ANSWER: A"] * 3, fail_on_error=False))
    assert run.reported["accuracy"] == pytest.approx(1 / 3)
    assert [sample.credit is None for sample in run.samples] == [False, False, False, True]
    assert run.samples[-1].status is Status.ERRORED
    assert run.samples[-1].error
    assert any("partial: Inspect completed 3 of 4" in note for note in run.notes)


def test_json_logs_read_like_eval_ones(quiz: Path, tmp_path: Path) -> None:
    from inspect_ai.log import read_eval_log, write_eval_log

    write_eval_log(read_eval_log(str(quiz)), str(tmp_path / "quiz.json"))
    assert read_inspect_run(tmp_path / "quiz.json").samples == read_inspect_run(quiz).samples


def test_messages_as_input_read_as_text(tmp_path: Path, quiz: Path) -> None:
    """P63."""
    from inspect_ai.log import read_eval_log, write_eval_log
    from inspect_ai.model import ChatMessageUser

    log = read_eval_log(str(quiz))
    assert log.samples is not None
    for sample in log.samples:
        sample.input = [ChatMessageUser(content=str(sample.input))]
    write_eval_log(log, str(tmp_path / "messages.eval"))
    assert [s.key for s in read_inspect_run(tmp_path / "messages.eval").samples] == [
        s.key for s in read_inspect_run(quiz).samples
    ]


def test_an_unfinished_log_is_used_and_flagged(quiz: Path, tmp_path: Path) -> None:
    """P39: status started, no results yet."""
    from inspect_ai.log import read_eval_log, write_eval_log

    log = read_eval_log(str(quiz))
    log.status, log.results, log.reductions = "started", None, None
    write_eval_log(log, str(tmp_path / "started.eval"))
    run = read_inspect_run(tmp_path / "started.eval")
    assert [sample.credit for sample in run.samples] == [1, 0, 0, 1]
    assert any("ended as started" in note for note in run.notes)


def test_broken_inspect_logs_are_one_clear_sentence(quiz: Path, tmp_path: Path) -> None:
    """P39: cut in half, no samples, not a log at all."""
    cut = tmp_path / "cut.eval"
    cut.write_bytes(quiz.read_bytes()[: quiz.stat().st_size // 2])
    with pytest.raises(InputError, match=r"cut\.eval"):
        read_inspect_run(cut)
    from inspect_ai.log import read_eval_log, write_eval_log

    log = read_eval_log(str(quiz))
    log.samples = []
    write_eval_log(log, str(tmp_path / "none.json"))
    with pytest.raises(InputError, match="holds no samples"):
        read_inspect_run(tmp_path / "none.json")
    (tmp_path / "other.json").write_text('{"hello": 1}')
    with pytest.raises(InputError, match=r"other\.json"):
        read_inspect_run(tmp_path / "other.json")
    with pytest.raises(InputError, match="does not exist"):
        read_inspect_run(tmp_path / "nothing.eval")


# both


def test_two_logs_of_the_same_items_are_matched_whatever_their_ids_and_order(quiz: Path, tmp_path: Path) -> None:
    """P40."""
    from inspect_ai.log import read_eval_log, write_eval_log

    log = read_eval_log(str(quiz))
    assert log.samples is not None
    for number, sample in enumerate(log.samples):
        sample.id = f"q{9 - number}"
    log.samples.reverse()
    log.reductions = None
    write_eval_log(log, str(tmp_path / "renamed.eval"))
    result = reconcile_runs(quiz, tmp_path / "renamed.eval")
    assert result.ledger.num_items["common"] == 4
    assert all(one.question == other.question for one, other in result.ledger.items.pairs)
    assert result.components().loc["unexplained", "net"] == 0


def test_unlike_logs_are_refused(stock: Path, quiz: Path) -> None:
    with pytest.raises(InputError, match="share no scored item"):
        reconcile_runs(stock / "arc_easy", quiz)
    with pytest.raises(InputError, match="one log scores pages and the other choices"):
        reconcile_runs(stock / "wikitext", quiz)
