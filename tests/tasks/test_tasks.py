"""The tasks through Inspect's own evaluator, on a tiny random checkpoint: what the log says can be replayed."""

import asyncio
import contextvars
import math
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import Task, task_with
from inspect_ai import eval as inspect_eval
from inspect_ai.log import EvalLog, read_eval_log
from inspect_ai.model import ChatMessageUser, GenerateConfig, Model, ModelOutput, ModelUsage, get_model
from inspect_ai.model._model import init_active_model
from inspect_ai.scorer import Target
from inspect_ai.solver import TaskState

from llm.errors import InputError
from llm.evaluation import rules
from llm.evaluation.data import item_key, load_items, load_pages
from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM
from llm.models import load_model
from providers.inspect_errors import PrerequisiteError
from tasks.arc_easy import arc_easy
from tasks.mmlu import mmlu
from tasks.scorer import likelihood_choice
from tasks.solver import choice_likelihoods
from tasks.wikitext import wikitext

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tiny(tiny_checkpoint: Path) -> Model:
    return get_model(f"decoder/{tiny_checkpoint}")


def evaluate(task: Task, model: Model, folder: Path) -> EvalLog:
    log = inspect_eval(task, model=model, display="none", log_dir=str(folder))[0]
    assert log.status == "success", log.error
    read = read_eval_log(log.location)
    read.samples.sort(key=lambda sample: (sample.metadata.get("subject"), sample.metadata["doc_id"]))
    return read


def metric(log: EvalLog, name: str) -> float:
    return float(log.results.scores[0].metrics[name].value)


def score_of(sample: Any) -> Any:
    return sample.scores["likelihood_choice"]


@pytest.fixture(scope="module")
def arc_log(tiny: Model, tmp_path_factory: pytest.TempPathFactory) -> EvalLog:
    task = arc_easy(limit_per_subject=16, normalisation="token", tie_break="fractional", unconditional=True)
    return evaluate(task, tiny, tmp_path_factory.mktemp("arc"))


def test_accuracy_is_what_the_rules_say_of_the_logged_scores(arc_log: EvalLog) -> None:
    items = load_items("arc_easy", limit=16)
    credits = []
    for item, sample in zip(items, arc_log.samples, strict=True):
        found = score_of(sample)
        values = rules.normalise(
            [choice["logprob"] for choice in found.metadata["choices"]],
            rule="token",
            num_tokens=[choice["num_tokens"] for choice in found.metadata["choices"]],
        )
        key = item_key(item.subject, item.question, item.choices)
        credit = rules.credit(values, item.gold, tie_break="fractional", key=key)
        assert Fraction(found.metadata["credit"]) == credit
        assert found.metadata["pick"] == rules.pick(values, tie_break="fractional", key=key)
        assert (sample.id, sample.target, sample.metadata["item_key"]) == (
            f"arc_easy/{item.doc_id}",
            "ABCDE"[item.gold],
            key,
        )
        assert sample.choices == list(item.choices)
        credits.append(credit)
    assert metric(arc_log, "accuracy") == float(sum(credits)) / len(credits)
    assert 0 < sum(credits) < len(credits)


def test_the_log_records_the_protocol_and_the_data(arc_log: EvalLog) -> None:
    protocol = arc_log.eval.metadata["protocol"]
    assert protocol["template"] == "inspect"
    assert protocol["normalisation"] == "token"
    assert protocol["tie_break"] == "fractional"
    assert protocol["defined_by"] == "Inspect (this project's likelihood task)"
    assert arc_log.eval.metadata["data"]["source"] == "sample"
    assert len(arc_log.eval.metadata["data"]["fingerprint"]) == 64
    assert arc_log.eval.dataset.name == "arc_easy (sample)"


def test_one_call_an_item_and_all_its_choices(arc_log: EvalLog) -> None:
    for sample in arc_log.samples:
        assert sum(event.event == "model" for event in sample.events) == 1
        assert len(score_of(sample).metadata["choices"]) == len(sample.choices)
        assert score_of(sample).metadata["status"] in ("scored", "truncated")
        assert 0 < score_of(sample).metadata["choice_mass"] < 1


@pytest.fixture(scope="module")
def tiny_lm(tiny_checkpoint: Path) -> LlamaLmEvalLM:
    return LlamaLmEvalLM(*load_model(str(tiny_checkpoint), dtype="float32"))


def test_lm_evals_template_scores_what_lm_eval_scores(tiny: Model, tiny_lm: Any, tmp_path: Path) -> None:
    from lm_eval.api.instance import Instance

    log = evaluate(
        arc_easy(limit_per_subject=6, template="lm-eval", normalisation="char", tie_break="first"), tiny, tmp_path
    )
    for item, sample in zip(load_items("arc_easy", limit=6), log.samples, strict=True):
        context = f"Question: {item.question}\nAnswer:"
        assert sample.input == context
        pairs = [(context, f" {choice}") for choice in item.choices]
        requests = [Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=0) for pair in pairs]
        right = [nats for nats, _ in tiny_lm.loglikelihood(requests, disable_tqdm=True)]
        assert [choice["logprob"] for choice in score_of(sample).metadata["choices"]] == pytest.approx(right, abs=1e-4)
        normed = [nats / len(choice) for nats, choice in zip(right, item.choices, strict=True)]
        assert score_of(sample).metadata["pick"] == normed.index(max(normed))


def test_choice_by_choice_gives_the_one_calls_scores(
    tiny: Model, tiny_checkpoint: Path, arc_log: EvalLog, tmp_path: Path
) -> None:
    each = choice_likelihoods(tokenizer=str(tiny_checkpoint), calls="each", unconditional=True)
    task = task_with(arc_easy(limit_per_subject=16, tie_break="fractional"), solver=each)
    log = evaluate(task, tiny, tmp_path)
    compared = 0
    for one, other in zip(arc_log.samples, log.samples, strict=True):
        if score_of(one).metadata["status"] != "scored":
            assert score_of(other).metadata["status"] == "windowed"
            continue
        for left, right in zip(score_of(one).metadata["choices"], score_of(other).metadata["choices"], strict=True):
            assert right["logprob"] == pytest.approx(left["logprob"], abs=1e-5)
            assert right["unconditional_logprob"] == pytest.approx(left["unconditional_logprob"], abs=1e-5)
            assert right["request_digest"] == left["request_digest"]
            compared += 1
        assert score_of(one).value == score_of(other).value
    assert compared > 12


def test_choice_by_choice_from_text_reads_the_tokens_own_spelling(tiny: Model, tmp_path: Path) -> None:
    task = task_with(arc_easy(limit_per_subject=4, template="lm-eval"), solver=choice_likelihoods(calls="each"))
    log = evaluate(task, tiny, tmp_path)
    for sample in log.samples:
        for text, choice in zip(sample.metadata["continuations"], score_of(sample).metadata["choices"], strict=True):
            assert choice["num_tokens"] == len(asyncio.run(tiny.api.tokenize(text)))
            assert choice["split"] == "joint"


def test_a_provider_without_prompt_logprobs_is_told_so(tmp_path: Path) -> None:
    output = ModelOutput.from_content("mockllm", "A")
    output.usage = ModelUsage()
    model = get_model("mockllm/model", custom_outputs=[output] * 9)
    log = inspect_eval(arc_easy(limit_per_subject=1), model=model, display="none", log_dir=str(tmp_path))[0]
    assert log.status == "error"
    assert "returns no prompt log-probabilities" in log.error.message


# -- the scorer on planted scores -------------------------------------------------------------------------------------


def planted(logprobs: list[float], *, gold: int, **settings: Any) -> Any:
    """The score of an item whose choices have these log-likelihoods."""
    texts = ["A", "B", "C", "D"][: len(logprobs)]
    state = TaskState(
        model="m",  # type: ignore[arg-type]
        sample_id=1,
        epoch=1,
        input="q",
        messages=[ChatMessageUser(content="q")],
        choices=texts,
        metadata={"gold": gold, "item_key": "key", "choice_texts": texts},
    )
    state.output = ModelOutput.from_content("m", "")
    state.output.metadata = {
        "continuations": [
            {"text": f" {text}", "logprob": value, "num_tokens": 1, "num_truncated": 0, "unconditional_logprob": None}
            for text, value in zip(texts, logprobs, strict=True)
        ]
    }
    return asyncio.run(likelihood_choice(**settings)(state, Target("A")))


def test_ties_are_worth_what_the_rule_says() -> None:
    tie = [-1.0, -2.0, -1.0, -1.0]
    values = {
        rule: planted(tie, gold=2, tie_break=rule).value for rule in ("first", "last", "fractional", "any", "none")
    }
    assert values == {"first": "I", "last": "I", "fractional": pytest.approx(1 / 3), "any": "C", "none": "I"}
    shared = planted(tie, gold=2, tie_break="fractional")
    assert (shared.metadata["credit"], shared.metadata["tied"], shared.metadata["pick"]) == ("1/3", [0, 2, 3], None)
    assert shared.answer == "A, C, D"
    drawn = {planted(tie, gold=2, tie_break="random", seed=seed).metadata["pick"] for seed in range(20)}
    assert drawn == {0, 2, 3}


def test_pmi_without_unconditional_scores_is_refused() -> None:
    with pytest.raises(InputError, match="'pmi' needs"):
        planted([-1.0, -2.0], gold=0, normalisation="pmi")


def test_an_item_without_scores_is_errored_not_wrong() -> None:
    state = TaskState(
        model="m",  # type: ignore[arg-type]
        sample_id=1,
        epoch=1,
        input="q",
        messages=[ChatMessageUser(content="q")],
        choices=["x", "y"],
        metadata={"gold": 0, "item_key": "key", "choice_texts": ["A", "B"]},
    )
    state.output = ModelOutput.from_content("m", "", stop_reason="model_length", error="too long")
    found = asyncio.run(likelihood_choice()(state, Target("A")))
    assert math.isnan(found.value)
    assert (found.reason, found.metadata["status"], found.metadata["error"]) == (
        "scoring_failed",
        "errored",
        "too long",
    )


def test_overlong_items_are_errored_and_counted_out(tiny_checkpoint: Path, tmp_path: Path) -> None:
    strict = get_model(f"decoder/{tiny_checkpoint}", overlong="error", max_length=60)
    log = evaluate(arc_easy(limit_per_subject=24, template="lm-eval"), strict, tmp_path)
    statuses = [score_of(sample).metadata["status"] for sample in log.samples]
    assert {"scored", "errored"} == set(statuses)
    scored = [score_of(sample) for sample in log.samples if score_of(sample).metadata["status"] == "scored"]
    assert metric(log, "accuracy") == sum(found.value == "C" for found in scored) / len(scored)


# -- mmlu, wikitext, the generated readout ----------------------------------------------------------------------------


def test_mmlu_reports_each_subject(tiny: Model, tmp_path: Path) -> None:
    names = ["astronomy", "world_religions"]
    available = [name for name in _subjects() if name in names] or list(_subjects()[:2])
    log = evaluate(mmlu(subjects=available, num_fewshot=1, limit_per_subject=3), tiny, tmp_path)
    found = {name: value.value for score in log.results.scores for name, value in score.metrics.items()}
    assert set(available) <= set(found)
    for name in available:
        values = [score_of(sample).value == "C" for sample in log.samples if sample.metadata["subject"] == name]
        assert found[name] == sum(values) / 3
    assert [sample.id for sample in log.samples] == [f"{name}/{doc}" for name in available for doc in range(3)]


def _subjects() -> tuple[str, ...]:
    from llm.evaluation.data import subjects

    return subjects()


def test_wikitext_is_inspects_perplexity_of_the_raw_pages(tiny: Model, tiny_lm: Any, tmp_path: Path) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.tasks.wikitext.preprocess_wikitext import process_results

    log = evaluate(wikitext(limit_per_subject=2), tiny, tmp_path)
    pages = load_pages(limit=2)
    requests = [Instance(request_type="loglikelihood_rolling", doc={}, arguments=(page,), idx=0) for page in pages]
    nats = tiny_lm.loglikelihood_rolling(requests, disable_tqdm=True)
    num_tokens = 0
    for page, sample, right in zip(pages, log.samples, nats, strict=True):
        assert sample.input == page
        counts = process_results({"page": page}, (0.0,))
        assert sample.metadata["num_words"] == counts["word_perplexity"][1]
        assert sample.metadata["num_bytes"] == counts["byte_perplexity"][1]
        found = sample.scores["perplexity"].metadata
        assert found["sum_log_probs"] == pytest.approx(right, rel=1e-6)
        assert sample.output.metadata["windowed"] is True
        num_tokens += found["num_tokens"]
    assert math.log(metric(log, "perplexity_per_token")) == pytest.approx(-sum(nats) / num_tokens, abs=1e-6)


def test_the_generated_readout_is_inspects_own(tiny: Model, tmp_path: Path) -> None:
    log = evaluate(arc_easy(limit_per_subject=3, readout="generate"), tiny, tmp_path)
    assert list(log.samples[0].scores) == ["choice"]
    assert log.eval.metadata["protocol"]["readout"] == "generate"
    assert all(
        sample.input == item.question for sample, item in zip(log.samples, load_items("arc_easy", limit=3), strict=True)
    )


# -- choosing the model -----------------------------------------------------------------------------------------------


def test_the_default_model_yields_to_one_asked_for(tiny: Model) -> None:
    def check() -> None:
        task = arc_easy(limit_per_subject=1)
        init_active_model(get_model("none"), GenerateConfig())
        assert str(task.model) == "decoder/smollm2-135m-instruct"
        init_active_model(tiny, GenerateConfig())
        assert task.model is None
        assert task_with(task, model=tiny).model is tiny

    contextvars.copy_context().run(check)  # the model in force is a context variable: it stays in there


def test_a_missing_model_is_one_sentence_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'no-such-model' is not found"):
        inspect_eval(
            arc_easy(limit_per_subject=1), model="decoder/no-such-model", display="none", log_dir=str(tmp_path)
        )


# -- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"normalisation": "words"}, "normalisation is 'words': use one of none, char"),
        ({"tie_break": "coin"}, "tie_break is 'coin': use one of first"),
        ({"template": "helm"}, "template is 'helm': use one of inspect, lm-eval"),
        ({"readout": "logits"}, "readout is 'logits'"),
        ({"num_fewshot": -1}, "num_fewshot is -1: give a whole number, 0 or more"),
        ({"num_fewshot": 999}, "num_fewshot is 999 and the data has"),
        ({"seed": "x"}, "seed is 'x': give a whole number"),
        ({"tie_atol": float("nan")}, "tie_atol is nan"),
        ({"limit_per_subject": 0}, "limit_per_subject is 0"),
        ({"data": "nowhere"}, "data folder .*nowhere does not exist"),
        ({"readout": "generate", "template": "lm-eval"}, "leave template at 'inspect'"),
    ],
)
def test_bad_arguments_are_one_sentence(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        arc_easy(**arguments)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, PrerequisiteError)  # what Inspect prints without a traceback


def test_subjects_come_as_text_or_list() -> None:
    first, second = _subjects()[:2]
    for given in (f"{first},{second}", [first, second]):
        task = mmlu(subjects=given, limit_per_subject=1, num_fewshot=0)
        assert [sample.metadata["subject"] for sample in task.dataset] == [first, second]
    with pytest.raises(InputError, match="unknown MMLU subject 'astrology'"):
        mmlu(subjects="astrology")


@pytest.mark.data
def test_relative_data_counts_from_the_shells_directory(shared_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY / "tasks")
    monkeypatch.setenv("PWD", str(shared_dir))
    task = arc_easy(data="data", limit_per_subject=2)
    assert task.metadata["data"]["source"] == str(shared_dir / "data")
    assert task.dataset[0].metadata["question"] == load_items("arc_easy", str(shared_dir / "data"), limit=1)[0].question


# -- the command line -------------------------------------------------------------------------------------------------


def inspect_cli(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`inspect …` in the repository, logging to `folder`, with every network address refused."""
    code = (
        "import socket, sys\n"
        "def refuse(*a, **k): raise OSError('no network here')\n"
        "socket.getaddrinfo = refuse\n"
        "from inspect_ai._cli.main import main\n"
        "main()\n"
    )
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments, "--display", "plain", "--log-dir", str(folder)],
        cwd=REPOSITORY,
        env={**kept, "PWD": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_task_files_need_no_model_no_network_and_no_setting(tmp_path: Path) -> None:
    files = [f"tasks/{name}.py" for name in ("mmlu", "arc_easy", "wikitext")]
    done = inspect_cli("eval", *files, "--limit", "1", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accuracy" in done.stdout
    assert "perplexity_per_token" in done.stdout
    logs = [read_eval_log(str(path), header_only=True) for path in tmp_path.glob("*.eval")]
    assert [(log.status, log.eval.model) for log in logs] == [("success", "decoder/smollm2-135m-instruct")] * 3


def foreign_package(folder: Path, module: str) -> str:
    """A path with another project's package that has a module of this name."""
    file = folder / "path" / module
    file.parent.mkdir(parents=True)
    file.write_text("")
    (file.parent / "__init__.py").write_text("")
    return str(folder / "path")


@pytest.mark.parametrize(
    ("module", "said"),
    [("tasks/benchmark.py", ["this task needs"]), ("llm/errors.py", ["this task needs", "the decoder provider needs"])],
)
def test_a_foreign_package_is_met_with_one_sentence(module: str, said: list[str], tmp_path: Path) -> None:
    code = (
        "import runpy\n"
        "from inspect_ai.model import get_model\n"
        f"file = {str(REPOSITORY / 'tasks' / 'mmlu.py')!r}\n"
        "for use in (lambda: runpy.run_path(file), lambda: get_model('decoder/x')):\n"
        "    try: use()\n"
        "    except Exception as error: print(type(error).__name__, error.message)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": foreign_package(tmp_path, module)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found = done.stdout.splitlines()
    assert len(found) == len(said), done.stderr
    for line, start in zip(found, said, strict=True):
        assert line.startswith(f"PrerequisiteError {start}")  # what Inspect prints without a traceback
        assert "comes first on the path" in line or "found first on the path" in line
