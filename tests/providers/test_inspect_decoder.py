"""Inspect's door, on real parts: a tiny random checkpoint with a real tokenizer, and the default model."""

import asyncio
import math
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import Task
from inspect_ai import eval as inspect_eval
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    ContentImage,
    ContentText,
    GenerateConfig,
    Model,
    ModelOutput,
    get_model,
)
from inspect_ai.scorer import perplexity, target_perplexity
from inspect_ai.solver import generate
from inspect_ai.tool import ToolDef

from llm.errors import InputError
from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM
from llm.models import load_model
from llm.scoring.plain import make_scorer
from llm.scoring.requests import ScoreRequest, TokenScores
from llm.scoring.store import ScoreStore
from providers import inspect_sessions
from providers.inspect_arguments import DecoderArguments
from providers.inspect_decoder import DecoderAPI, forget_loaded, register_loaded

TEXT = "The quick brown fox jumps over the lazy dog. Question: what is water?"
LONG = " ".join([TEXT] * 30)  # several windows of the tiny checkpoint's 256 positions


def run(call: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(call)


def api(model: Model) -> DecoderAPI:
    assert isinstance(model.api, DecoderAPI)
    return model.api


def ask(model: Model, text: str | list[Any], **config: Any) -> ModelOutput:
    return run(model.generate(text, config=GenerateConfig(**config)))


@pytest.fixture(scope="module")
def tiny(tiny_checkpoint: Path) -> Model:
    return get_model(f"decoder/{tiny_checkpoint}")


@pytest.fixture(scope="module")
def tiny_lm(tiny_checkpoint: Path) -> LlamaLmEvalLM:
    """lm-eval's door to the same weights, loaded apart."""
    return LlamaLmEvalLM(*load_model(str(tiny_checkpoint), dtype="float32"))


@pytest.fixture(scope="module")
def default(default_model: Any) -> Any:
    """The default model behind its usual name, sharing the session's weights."""
    model, tokenizer = default_model
    register_loaded("smollm2-135m-instruct", model=model, tokenizer=tokenizer, scorer=make_scorer(model))
    yield get_model("decoder/smollm2-135m-instruct")
    forget_loaded("smollm2-135m-instruct")


def instance(*args: str) -> Any:
    """A request as lm-eval hands it to a model."""
    from lm_eval.api.instance import Instance

    kind = "loglikelihood" if len(args) == 2 else "loglikelihood_rolling"
    return Instance(request_type=kind, doc={}, arguments=args, idx=0)


# -- finding, constructing, arguments ---------------------------------------------------------------------------------


def test_p38_entry_point_names_the_provider_and_constructing_loads_nothing() -> None:
    code = """
import sys
from inspect_ai.model import get_model
for ref in ("smollm2-135m-instruct", "no/such/model", "/nowhere.gguf"):
    assert type(get_model("decoder/" + ref).api).__name__ == "DecoderAPI"
print("torch" in sys.modules, "transformers" in sys.modules, "lm_eval" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False", "False", "False"], done.stderr


def test_importing_the_package_for_another_reason_loads_no_harness() -> None:
    code = "import sys, providers; print('inspect_ai' in sys.modules, 'lm_eval' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"dtyp": "float32"}, "unknown model argument 'dtyp'.*dtype, logits_dtype"),
        ({"dtype": "int4"}, "dtype is 'int4'.*bfloat16"),
        ({"overlong": "cut"}, "overlong is 'cut'.*windows, error"),
        ({"chat_template": "yes"}, "chat_template is 'yes'.*auto, true, false"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"max_length": 2.5}, "max_length is 2.5"),
    ],
)
def test_model_arguments_are_checked_by_name(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        get_model("decoder/smollm2-135m-instruct", memoize=False, **arguments)


def test_an_unknown_model_is_one_sentence_when_used() -> None:
    model = get_model("decoder/no-such-model")
    with pytest.raises(InputError, match="'no-such-model' is not found") as caught:
        ask(model, "X")
    assert "\n" not in str(caught.value)


def test_max_length_beyond_the_model_is_refused(tiny_checkpoint: Path) -> None:
    with pytest.raises(InputError, match=r"max_length is 300: .* has 256 positions"):
        ask(get_model(f"decoder/{tiny_checkpoint}", max_length=300), TEXT, prompt_logprobs=1)


def test_p38_two_dtypes_stand_side_by_side(tiny: Model, tiny_checkpoint: Path) -> None:
    other = get_model(f"decoder/{tiny_checkpoint}", dtype="bfloat16")
    outputs = [ask(model, TEXT, prompt_logprobs=1) for model in (tiny, other, tiny)]
    assert [output.metadata["dtype"] for output in outputs] == ["float32", "bfloat16", "float32"]
    sums = [sum(entry.logprob for entry in output.choices[0].prompt_logprobs.content) for output in outputs]
    assert sums[0] == sums[2]
    assert sums[0] != sums[1]
    assert sums[0] == pytest.approx(sums[1], rel=1e-2)


# -- prompt log-probabilities -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["Hello", TEXT, LONG, "naïve café — 水\n\n "])
def test_p19_prompt_logprobs_sum_to_the_rolling_loglikelihood(tiny: Model, tiny_lm: Any, text: str) -> None:
    output = ask(tiny, text, prompt_logprobs=1)
    entries = output.choices[0].prompt_logprobs.content
    assert sum(entry.logprob for entry in entries) == pytest.approx(
        tiny_lm.loglikelihood_rolling([instance(text)], disable_tqdm=True)[0], abs=1e-4
    )
    assert len(entries) == run(api(tiny).count_text_tokens(text))
    assert all(entry.logprob <= 0 for entry in entries)
    assert output.metadata["windowed"] is (text is LONG)
    assert output.metadata["first_token"].startswith("context only: id 1")
    assert "".join(entry.token for entry in entries if "�" not in entry.token) in text or "�" in str(entries)


def test_prompt_logprobs_generate_only_what_is_asked_for(tiny: Model) -> None:
    assert ask(tiny, TEXT, prompt_logprobs=1).usage.output_tokens == 0
    output = ask(tiny, TEXT, prompt_logprobs=1, max_tokens=3)
    assert output.usage.output_tokens == 3
    assert len(output.choices[0].prompt_logprobs.content) + 1 == output.usage.input_tokens


def test_a_windowed_prompt_leaves_no_room_to_generate_but_keeps_its_scores(tiny: Model) -> None:
    output = ask(tiny, LONG, prompt_logprobs=1, max_tokens=1)
    assert output.stop_reason == "model_length"
    assert len(output.choices[0].prompt_logprobs.content) == run(api(tiny).count_text_tokens(LONG))


def test_alternatives_are_the_most_likely_tokens_best_first(tiny: Model) -> None:
    for entry in ask(tiny, TEXT, prompt_logprobs=5).choices[0].prompt_logprobs.content:
        values = [top.logprob for top in entry.top_logprobs]
        assert len(values) == 5
        assert values == sorted(values, reverse=True)
        assert entry.logprob <= values[0]
        assert all(bytes(top.bytes).decode(errors="replace") == top.token for top in entry.top_logprobs)
    with pytest.raises(InputError, match="top_logprobs is 21: give 0 to 20"):
        ask(tiny, TEXT, logprobs=True, top_logprobs=21)


def test_token_ids_are_taken_verbatim(tiny: Model) -> None:
    text = ask(tiny, TEXT, prompt_logprobs=1).choices[0].prompt_logprobs.content
    ids = run(api(tiny).tokenize(TEXT))
    message = ChatMessageUser(content="", metadata={"prompt_token_ids": [1, *ids]})
    assert ask(tiny, [message], prompt_logprobs=1).choices[0].prompt_logprobs.content == text
    message = ChatMessageUser(content="", metadata={"prompt_token_ids": ids})
    bare = ask(tiny, [message], prompt_logprobs=1)
    assert len(bare.choices[0].prompt_logprobs.content) == len(ids) - 1
    for bad, said in ([], "empty"), ("12", "list of token ids"), ([1, "2"], "list of token ids"), ([-1], "list of"):
        with pytest.raises(InputError, match=said):
            ask(tiny, [ChatMessageUser(content="x", metadata={"prompt_token_ids": bad})], prompt_logprobs=1)


def test_scoring_calls_take_exactly_one_user_message(tiny: Model) -> None:
    for messages in (
        [ChatMessageSystem(content="s"), ChatMessageUser(content="u")],
        [ChatMessageUser(content="u"), ChatMessageAssistant(content="a")],
    ):
        with pytest.raises(InputError, match="exactly one user message"):
            ask(tiny, messages, prompt_logprobs=1)
    with pytest.raises(InputError, match="the prompt is empty"):
        ask(tiny, "", prompt_logprobs=1)


def test_overlong_error_refuses_without_failing_the_call(tiny_checkpoint: Path) -> None:
    strict = get_model(f"decoder/{tiny_checkpoint}", overlong="error")
    output = ask(strict, LONG, prompt_logprobs=1)
    assert output.stop_reason == "model_length"
    assert output.choices[0].prompt_logprobs is None
    assert "the context holds 256" in output.error
    output = ask(strict, LONG, extra_body={"continuations": [" A"]})
    assert output.stop_reason == "model_length"
    assert "continuations" not in output.metadata
    assert ask(strict, TEXT, prompt_logprobs=1).stop_reason == "stop"


# -- continuations ----------------------------------------------------------------------------------------------------


def test_continuations_score_as_lm_eval_scores_them(tiny: Model, tiny_lm: Any) -> None:
    cases = [
        ("Question: what is water?\nAnswer:", [" a liquid", " B", " D."]),
        ("The sky is ", ["blue"]),
        (LONG, [" A"]),
    ]
    for context, continuations in cases:
        output = ask(tiny, context, extra_body={"continuations": continuations, "unconditional": True})
        found = output.metadata["continuations"]
        right = tiny_lm.loglikelihood([instance(context, text) for text in continuations], disable_tqdm=True)
        bare = tiny_lm.loglikelihood([instance("", text) for text in continuations], disable_tqdm=True)
        for entry, text, (nats, greedy), (alone, _) in zip(found, continuations, right, bare, strict=True):
            assert entry["text"] == text
            assert entry["logprob"] == pytest.approx(nats, abs=1e-4)
            assert entry["is_greedy"] is greedy
            assert entry["unconditional_logprob"] == pytest.approx(alone, abs=1e-4)
        assert bool(found[0]["num_truncated"]) is (context is LONG)
        assert output.usage.output_tokens == 0


def test_p01_a_token_across_the_join_is_flagged(tiny: Model) -> None:
    clean, merged = (
        ask(tiny, context, extra_body={"continuations": [text]}).metadata["continuations"][0]
        for context, text in (("Question: what is", " water"), ("Question: wh", "at is water"))
    )
    assert clean["split"] == "joint"
    assert merged["split"] in ("merged", "separate")
    assert merged["num_tokens"] >= 1


def test_p27_the_letter_is_scored_with_its_space(default: Model) -> None:
    context = "Which is a liquid?\nA. water\nB. stone\nAnswer:"
    output = ask(default, context, extra_body={"continuations": [" A", " B"]})
    ids = run(api(default).tokenize(context))
    for entry, token in zip(output.metadata["continuations"], (330, 389), strict=True):
        assert entry["num_tokens"] == 1
        request = ScoreRequest(context_ids=tuple(ids), continuation_ids=(token,))
        assert entry["request_digest"] == request.digest


@pytest.mark.parametrize("body", [{"continuations": []}, {"continuations": " A"}, {"continuations": [1]}])
def test_continuations_are_a_list_of_texts(tiny: Model, body: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="must be a list of texts"):
        ask(tiny, "x", extra_body=body)


def test_unknown_extra_body_is_named(tiny: Model) -> None:
    with pytest.raises(InputError, match="unknown extra_body field 'guided_choice'"):
        ask(tiny, "x", extra_body={"guided_choice": ["A"]})


# -- generation -------------------------------------------------------------------------------------------------------


def test_p34_raw_prompts_are_the_message_itself(default: Model, default_model: Any, tiny: Model) -> None:
    tokenizer = default_model[1]
    raw = get_model("decoder/smollm2-135m-instruct", chat_template=False)
    messages = [ChatMessageUser(content=" X\n")]
    assert api(raw).render(tokenizer, messages) == " X\n"
    assert api(tiny).render(run(_tokenizer(tiny)), messages) == " X\n"
    assert ask(raw, " X\n", max_tokens=1).usage.input_tokens == len(tokenizer(" X\n")["input_ids"])
    system = [ChatMessageSystem(content="Be brief."), ChatMessageUser(content="X")]
    with pytest.raises(InputError, match="exactly one user message, and the messages given are: system, user"):
        ask(raw, system, max_tokens=1)


async def _tokenizer(model: Model) -> Any:
    return (await api(model)._decoder()).tokenizer


def test_chat_prompts_are_the_tokenizers_own_template(
    default: Model, default_model: Any, tiny_checkpoint: Path
) -> None:
    tokenizer = default_model[1]
    messages = [
        ChatMessageSystem(content="Be brief."),
        ChatMessageUser(content="Hi {x}"),
        ChatMessageAssistant(content="Yo"),
    ]
    plain = [{"role": message.role, "content": message.text} for message in messages]
    right = tokenizer.apply_chat_template(plain, add_generation_prompt=True, tokenize=False)
    assert api(default).render(tokenizer, messages) == right
    assert right.count("<|im_start|>") == 4
    output = ask(default, messages, max_tokens=1)
    assert output.usage.input_tokens == len(tokenizer(right, add_special_tokens=False)["input_ids"])
    with pytest.raises(InputError, match=r"chat_template is true, and the tokenizer of .* has no chat template"):
        ask(get_model(f"decoder/{tiny_checkpoint}", chat_template=True), "X")


def test_p35_reasons_for_stopping(tiny: Model, default: Model) -> None:
    output = ask(tiny, TEXT, max_tokens=3)
    assert (output.stop_reason, output.usage.output_tokens) == ("max_tokens", 3)
    output = ask(tiny, LONG, max_tokens=3)
    assert (output.stop_reason, output.completion) == ("model_length", "")
    assert "the context holds 256" in output.error
    near = TEXT * (250 // run(api(tiny).count_text_tokens(TEXT)))
    left = 256 - run(api(tiny).count_text_tokens(near))
    assert 0 < left < 40
    output = ask(tiny, near, max_tokens=1000)
    assert output.stop_reason in ("model_length", "stop")
    assert output.usage.output_tokens <= left
    free = ask(default, "Name the capital of France.", max_tokens=24).completion
    assert "Paris" in free
    stopped = ask(default, "Name the capital of France.", max_tokens=24, stop_seqs=["Paris"])
    assert stopped.stop_reason == "stop"
    assert stopped.completion == free[: free.index("Paris")]


def test_p36_unset_and_zero_temperature_are_greedy(tiny: Model) -> None:
    outputs = {ask(tiny, TEXT, max_tokens=12, **extra).completion for extra in ({}, {"temperature": 0.0}, {})}
    assert len(outputs) == 1


def test_p37_concurrent_calls_equal_their_solo_runs(tiny: Model) -> None:
    settings = [
        {"max_tokens": 2},
        {"max_tokens": 20},
        {"max_tokens": 20, "stop_seqs": ["e"]},
        {"max_tokens": 9, "temperature": 0.9, "seed": 3},
        {"max_tokens": 9, "temperature": 0.9, "seed": 4, "top_k": 5, "top_p": 0.8},
    ]
    alone = [ask(tiny, TEXT, **config).completion for config in settings]

    async def together() -> list[str]:
        calls = [tiny.generate(TEXT, config=GenerateConfig(**config)) for config in settings]
        return [output.completion for output in await asyncio.gather(*calls)]

    assert run(together()) == alone


def test_logprobs_are_those_of_the_tokens_chosen(tiny: Model) -> None:
    config = {"max_tokens": 8, "temperature": 1.0, "seed": 1, "logprobs": True, "top_logprobs": 3}
    output = ask(tiny, TEXT, **config)
    entries = output.choices[0].logprobs.content
    spelled = b"".join(bytes(entry.bytes) for entry in entries).decode(errors="replace")
    assert re.sub(r"<\|\w+\|>", "", spelled) == output.completion  # the text leaves special tokens out
    assert any(entry.token != entry.top_logprobs[0].token for entry in entries)  # sampling left the greedy path
    for entry in entries:
        assert entry.logprob <= entry.top_logprobs[0].logprob
        assert len(entry.top_logprobs) == 3
    assert ask(tiny, TEXT, max_tokens=2).choices[0].logprobs is None


def test_num_choices_gives_each_its_own_seed(tiny: Model) -> None:
    output = ask(tiny, TEXT, max_tokens=8, temperature=1.0, seed=7, num_choices=3)
    texts = [choice.message.text for choice in output.choices]
    assert len(set(texts)) == 3
    assert texts[1] == ask(tiny, TEXT, max_tokens=8, temperature=1.0, seed=8).completion
    assert output.usage.output_tokens >= 3


def test_what_is_not_supported_is_refused_in_one_sentence(tiny: Model) -> None:
    async def add(x: int) -> int:
        """Add.

        Args:
            x: A number.
        """
        return x

    with pytest.raises(InputError, match="take no tools, and 1 were given"):
        run(tiny.generate("x", tools=[ToolDef(add, name="add")]))
    image = ContentImage(image="data:image/png;base64,iVBORw0KGgo=")
    message = ChatMessageUser(content=[ContentText(text="what?"), image])
    with pytest.raises(InputError, match="take text only, and a user message holds 'image'"):
        ask(tiny, [message])
    with pytest.raises(InputError, match="do not support frequency_penalty"):
        ask(tiny, "x", frequency_penalty=0.5)
    with pytest.raises(InputError, match="top_p"):  # refused by the generator: it arrives as the error it is
        ask(tiny, "x", max_tokens=2, temperature=1.0, top_p=7.0, num_choices=2)


def test_scores_are_kept_in_the_store_asked_for(tiny: Model, tiny_checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite"
    kept = get_model(f"decoder/{tiny_checkpoint}", store=str(path))
    ask(kept, TEXT, prompt_logprobs=1)
    assert ScoreStore(path).info().num_requests == 1
    again = ask(kept, TEXT, prompt_logprobs=1).choices[0].prompt_logprobs
    assert again == ask(tiny, TEXT, prompt_logprobs=1).choices[0].prompt_logprobs
    assert ScoreStore(path).info().num_requests == 1


# -- counting ---------------------------------------------------------------------------------------------------------


def test_counting_needs_neither_network_nor_weights(monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: Path) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    model = get_model(f"decoder/{tiny_checkpoint}", max_length=200)  # arguments of its own: nothing is loaded yet
    ids = run(api(model).tokenize(TEXT))
    assert run(api(model).count_text_tokens(TEXT)) == len(ids) > 10
    assert run(api(model).count_tokens([ChatMessageUser(content=TEXT)])) >= len(ids)


# -- Inspect's own scorers and evaluator ------------------------------------------------------------------------------


def evaluate(task: Task, model: Model, folder: Path) -> EvalLog:
    log = inspect_eval(task, model=model, display="none", log_dir=str(folder))[0]
    assert log.status == "success", log.error
    return log


def test_inspects_perplexity_scorers_work(tiny: Model, tiny_lm: Any, tmp_path: Path) -> None:
    texts = [TEXT, "Question: what is water?\nAnswer: a liquid"]
    task = Task(
        dataset=[Sample(input=text) for text in texts],
        solver=generate(),
        scorer=perplexity(),
        config=GenerateConfig(prompt_logprobs=1),
    )
    log = evaluate(task, tiny, tmp_path)
    nats = -sum(tiny_lm.loglikelihood_rolling([instance(text) for text in texts], disable_tqdm=True))
    tokens = sum(run(api(tiny).count_text_tokens(text)) for text in texts)
    found = log.results.scores[0].metrics["perplexity_per_token"].value
    assert math.log(found) == pytest.approx(nats / tokens, abs=1e-6)


def test_inspects_target_perplexity_works(tiny: Model, tiny_lm: Any, tmp_path: Path) -> None:
    context, target = "Question: what is water?\nAnswer:", " a liquid"
    task = Task(
        dataset=[Sample(input=context + target, metadata={"target_text": target})],
        solver=generate(),
        scorer=target_perplexity(),
        config=GenerateConfig(prompt_logprobs=1),
    )
    log = evaluate(task, tiny, tmp_path)
    ids, tail = run(api(tiny).tokenize(context)), run(api(tiny).tokenize(target))
    request = ScoreRequest(context_ids=(tiny_lm.prefix_token_id, *ids), continuation_ids=tuple(tail))
    nats = make_scorer(tiny_lm.model).score([request])[0].total
    assert log.samples[0].scores["target_perplexity"].metadata["sum_log_probs"] == pytest.approx(nats, abs=1e-4)


class Recorder:
    """Passes requests on to a real scorer and keeps how many came at a time."""

    def __init__(self, scorer: Any) -> None:
        self.scorer = scorer
        self.sizes: list[int] = []

    def score(self, requests: Any, *, top_k: int = 0) -> list[TokenScores]:
        self.sizes.append(len(requests))
        return self.scorer.score(requests, top_k=top_k)


def test_concurrent_samples_are_scored_together_on_a_model_handed_in(tiny_checkpoint: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model(str(tiny_checkpoint))
    recorder = Recorder(make_scorer(model))
    name = register_loaded("handed-in", model=model, tokenizer=tokenizer, scorer=recorder)
    try:
        task = Task(
            dataset=[Sample(input=f"{TEXT} {number}") for number in range(48)],
            solver=generate(),
            scorer=perplexity(),
            config=GenerateConfig(prompt_logprobs=1, max_connections=256),
        )
        log = evaluate(task, get_model(name), tmp_path)
    finally:
        forget_loaded("handed-in")
    assert log.results.completed_samples == 48
    assert sum(recorder.sizes) == 48
    assert len(recorder.sizes) < 16
    assert max(recorder.sizes) > 8


def test_a_model_loads_once_in_a_thread_that_ends_and_again_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that stayed would keep OpenMP's helpers, too many of which slow every later step."""
    outcomes = [InputError("no such folder"), "loaded"]
    threads = []

    def load(ref: str, arguments: DecoderArguments) -> object:
        threads.append(threading.current_thread())
        outcome = outcomes.pop(0)
        if isinstance(outcome, InputError):
            raise outcome
        return outcome

    monkeypatch.setattr(inspect_sessions, "_load", load)
    session = inspect_sessions.Session("ref", DecoderArguments())
    with pytest.raises(InputError, match="no such folder"):
        session.start_loading().result(timeout=10)
    assert [session.start_loading().result(timeout=10) for _ in range(3)] == ["loaded"] * 3
    assert len(threads) == 2
    for thread in threads:
        thread.join(timeout=10)
        assert not thread.is_alive()
