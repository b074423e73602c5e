"""Samples that fail, on our tasks: Inspect's own retries, its limits on errors, and eval-retry on what was flushed."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import eval as inspect_eval
from inspect_ai import eval_retry
from inspect_ai.log import EvalLog, read_eval_log

from llm.models import load_model
from llm.scoring.plain import make_scorer
from llm.scoring.requests import Scorer, ScoreRequest, TokenScores
from providers.inspect_decoder import forget_loaded, register_loaded
from tasks.arc_easy import arc_easy

NUM_ITEMS = 8


class Faulty:
    """A scorer that fails at its calls of the numbers in `at`, counted from 0."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.at: set[int] = set()
        self.num_calls = 0
        self.asked: list[ScoreRequest] = []

    def score(self, requests: Sequence[ScoreRequest], *, top_k: int = 0) -> list[TokenScores]:
        number, self.num_calls = self.num_calls, self.num_calls + 1
        if number in self.at:
            raise RuntimeError("the accelerator fell off the bus")
        self.asked += requests
        return self.scorer.score(requests, top_k=top_k)


@pytest.fixture
def faulty(tiny_checkpoint: Path) -> Iterator[Faulty]:
    """The tiny model behind a scorer that may be told to fail."""
    model, tokenizer = load_model(str(tiny_checkpoint), dtype="float32", device="cpu")
    scorer = Faulty(make_scorer(model))
    register_loaded(str(tiny_checkpoint), model=model, tokenizer=tokenizer, scorer=scorer)
    yield scorer
    forget_loaded(str(tiny_checkpoint))


@pytest.fixture
def run(tiny_checkpoint: Path, tmp_path: Path, faulty: Faulty) -> Callable[..., EvalLog]:
    """Evaluates some items of ARC-Easy, one after the other unless told otherwise; the log as it stands on disk."""

    def go(**settings: Any) -> EvalLog:
        log = inspect_eval(
            arc_easy(limit_per_subject=NUM_ITEMS),
            model=f"decoder/{tiny_checkpoint}",
            display="none",
            log_dir=str(tmp_path),
            log_buffer=1,
            **{"max_samples": 1, **settings},
        )[0]
        return read_eval_log(log.location)

    return go


def scores(log: EvalLog) -> dict[str, Any]:
    return {str(sample.id): sample.scores["likelihood_choice"].metadata["scores"] for sample in log.samples}


def test_eval_retry_asks_only_for_what_was_not_flushed(
    run: Callable[..., EvalLog], faulty: Faulty, tmp_path: Path
) -> None:
    whole = run()
    assert whole.status == "success"
    num_requests = len(faulty.asked)

    faulty.at, faulty.asked = {faulty.num_calls + 5}, []
    broken = run()
    assert broken.status == "error"
    assert "the accelerator fell off the bus" in str(broken.error.message)
    done = [sample for sample in broken.samples if sample.error is None]
    assert len(done) == 5

    faulty.asked = []
    again = eval_retry(broken.location, display="none", log_dir=str(tmp_path))[0]
    again = read_eval_log(again.location)
    assert again.status == "success"
    assert again.location != broken.location, "a second log is written"
    assert len(faulty.asked) == num_requests * 3 // NUM_ITEMS or len(faulty.asked) < num_requests // 2
    assert scores(again) == scores(whole), "to the bit"
    assert again.results.scores[0].metrics["accuracy"].value == whole.results.scores[0].metrics["accuracy"].value


def test_a_failed_sample_is_attributed_and_the_others_stay(run: Callable[..., EvalLog], faulty: Faulty) -> None:
    faulty.at = {2}
    log = run(fail_on_error=False)
    assert log.status == "success"
    (failed,) = [sample for sample in log.samples if sample.error is not None]
    assert "the accelerator fell off the bus" in failed.error.message
    assert log.results.completed_samples == NUM_ITEMS - 1
    assert log.results.total_samples == NUM_ITEMS


def test_a_sample_may_be_tried_again(run: Callable[..., EvalLog], faulty: Faulty) -> None:
    whole = run()
    faulty.at = {faulty.num_calls + 2}
    log = run(retry_on_error=1)
    assert log.status == "success"
    assert scores(log) == scores(whole)
    (tried,) = [sample for sample in log.samples if sample.error_retries]
    assert "the accelerator fell off the bus" in tried.error_retries[0].message


def test_too_many_failures_end_the_run(run: Callable[..., EvalLog], faulty: Faulty) -> None:
    faulty.at = {0, 1, 2, 3}
    assert run(fail_on_error=2).status == "error"


def test_one_failure_among_samples_that_run_together_is_its_own(run: Callable[..., EvalLog], faulty: Faulty) -> None:
    """The call that fails is halved until the request that fails it stands alone."""
    whole = run(max_samples=NUM_ITEMS)
    guilty = faulty.asked[0]
    honest = faulty.scorer

    class Choosy:
        def score(self, requests: Sequence[ScoreRequest], *, top_k: int = 0) -> list[TokenScores]:
            if guilty in requests:
                raise RuntimeError("one bad request")
            return honest.score(requests, top_k=top_k)

    faulty.scorer = Choosy()
    log = run(max_samples=NUM_ITEMS, fail_on_error=False)
    (failed,) = [sample for sample in log.samples if sample.error is not None]
    assert "one bad request" in failed.error.message
    kept = {str(sample.id): sample for sample in log.samples if sample.error is None}
    wanted = scores(whole)
    assert len(kept) == NUM_ITEMS - 1
    for name, sample in kept.items():
        assert sample.scores["likelihood_choice"].metadata["scores"] == wanted[name]


HOSTILE = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('touch owned') }}",
    "{% for n in range(10**9) %}x{% endfor %}",
    "{{ messages.append({'role': 'user', 'content': 'x'}) }}",
    "{% include '/etc/passwd' %}",
)


@pytest.mark.parametrize("template", HOSTILE)
def test_chat_templates_run_in_a_sandbox(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    from inspect_ai.model import ChatMessageUser

    from llm.errors import InputError
    from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM
    from llm.models import load_tokenizer
    from providers.inspect_prompts import chat_prompt

    monkeypatch.chdir(tmp_path)
    tokenizer = load_tokenizer(str(tiny_checkpoint))
    tokenizer.chat_template = template
    with pytest.raises(InputError, match="the chat template refuses the messages"):
        chat_prompt(tokenizer, [ChatMessageUser(content="hello")])
    model, _ = load_model(str(tiny_checkpoint), device="cpu")
    with pytest.raises(InputError, match="the chat template of"):
        LlamaLmEvalLM(model, tokenizer).apply_chat_template([{"role": "user", "content": "hello"}])
    assert not list(tmp_path.iterdir())
