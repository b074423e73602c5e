"""The completions server over real sockets on the loopback: its answers, its refusals, and what clients make of it."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.models import load_model
from llm.scoring.encoding import encode_text
from llm.scoring.generation import generate
from llm.scoring.plain import make_scorer
from llm.scoring.requests import GenerationRequest, ScoreRequest
from llm.scoring.service import ScoringService
from providers.completer import PART_TOKENS
from providers.completions_app import Limits
from providers.completions_format import TokenNames, text_offsets
from providers.inspect_sessions import LoadedDecoder
from providers.serve import bind, main, model_names, serving

TEXT = "The quick brown fox: what is water? A liquid."


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server on the loopback and the decoder behind it."""

    url: str
    model: Any
    tokenizer: Any
    service: ScoringService

    def post(self, path: str, body: Any = None, **kwargs: Any) -> requests.Response:
        if body is not None:
            kwargs["json"] = body
        return requests.post(self.url + path, timeout=120, **kwargs)

    def complete(self, **body: Any) -> dict[str, Any]:
        response = self.post("/v1/completions", body)
        assert response.status_code == 200, response.text
        return response.json()

    def ids(self, text: str) -> list[int]:
        return encode_text(self.tokenizer, text)


@contextmanager
def running(model: Any, tokenizer: Any, limits: Limits | None = None) -> Iterator[Running]:
    service = ScoringService(model, tokenizer, make_scorer(model))
    decoder = LoadedDecoder(model=model, tokenizer=tokenizer, service=service, logits_dtype="float32")
    try:
        with serving(decoder, "tiny", limits) as url:
            yield Running(url=url, model=model, tokenizer=tokenizer, service=service)
    finally:
        service.close()


@pytest.fixture(scope="module")
def tiny(tiny_checkpoint: Path) -> Iterator[Running]:
    model, tokenizer = load_model(str(tiny_checkpoint), dtype="float32", device="cpu")
    with running(model, tokenizer) as server:
        yield server


def reference(server: Running, ids: list[int]) -> torch.Tensor:
    """Log-probabilities (T, V) of what follows each id, by the model's plain forward pass."""
    with torch.inference_mode():
        return server.model(torch.tensor([ids]))[0].log_softmax(-1)


# -- scoring ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_ids", [False, True])
def test_echo_scores_every_prompt_token_but_the_first(tiny: Running, as_ids: bool) -> None:
    ids = tiny.ids(TEXT)
    answer = tiny.complete(prompt=ids if as_ids else TEXT, max_tokens=0, echo=True, logprobs=3)
    choice = answer["choices"][0]
    table = reference(tiny, ids)
    expected = [float(table[at, token]) for at, token in enumerate(ids[1:])]
    logprobs = choice["logprobs"]
    assert choice["text"] == TEXT
    assert choice["finish_reason"] == "length"
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:] == pytest.approx(expected, abs=1e-5)
    assert "".join(logprobs["tokens"]) == TEXT
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert TEXT[offset : offset + len(token)] == token
    for at, (top, token) in enumerate(zip(logprobs["top_logprobs"][1:], logprobs["tokens"][1:], strict=True)):
        assert 3 <= len(top) <= 4
        assert top[token] == logprobs["token_logprobs"][at + 1]
        assert max(top.values()) == pytest.approx(float(table[at].max()), abs=1e-5)
    assert answer["usage"] == {"prompt_tokens": len(ids), "completion_tokens": 0, "total_tokens": len(ids)}


@pytest.mark.parametrize("asked", [0, 1, 5])
def test_prompt_logprobs_are_vllms(tiny: Running, asked: int) -> None:
    ids = tiny.ids(TEXT)
    rows = tiny.complete(prompt=TEXT, max_tokens=0, prompt_logprobs=asked)["choices"][0]["prompt_logprobs"]
    table = reference(tiny, ids)
    assert rows[0] is None
    assert len(rows) == len(ids)
    for at, (row, token) in enumerate(zip(rows[1:], ids[1:], strict=True)):
        (first, own), *others = row.items()
        assert first == str(token)
        assert own["logprob"] == pytest.approx(float(table[at, token]), abs=1e-5)
        assert own["rank"] == int((table[at] > table[at, token]).sum()) + 1
        best = table[at].topk(asked).indices.tolist() if asked else []
        assert [int(name) for name, _ in others] == [other for other in best if other != token]
        assert [entry["rank"] for _, entry in others] == [n for n, o in enumerate(best, 1) if o != token]
    assert (
        "".join(row[str(token)]["decoded_token"] for row, token in zip(rows[1:], ids[1:], strict=True))
        == TEXT[len(tiny.tokenizer.decode(ids[:1])) :]
    )


def test_floats_are_not_rounded_on_the_wire(tiny: Running) -> None:
    ids = tiny.ids(TEXT)
    request = ScoreRequest(context_ids=tuple(ids[:1]), continuation_ids=tuple(ids[1:]))
    expected = make_scorer(tiny.model).score([request])[0].logprobs
    choice = tiny.complete(prompt=ids, max_tokens=0, echo=True, logprobs=0)["choices"][0]
    assert tuple(choice["logprobs"]["token_logprobs"][1:]) == expected


@pytest.mark.parametrize("prompt", [[3], "T"])
def test_a_lone_token_has_no_logprob(tiny: Running, prompt: Any) -> None:
    choice = tiny.complete(prompt=prompt, max_tokens=0, echo=True, logprobs=1, prompt_logprobs=1)["choices"][0]
    assert choice["logprobs"]["token_logprobs"] == [None]
    assert choice["prompt_logprobs"] == [None]


def test_token_ids_are_taken_verbatim_and_lists_answered_in_order(tiny: Running) -> None:
    prompts = [[1, 1, 5, 9], [5, 9], [7, 8, 9, 10, 11]]
    answer = tiny.complete(prompt=prompts, max_tokens=0, echo=True, logprobs=0)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        table = reference(tiny, prompt)
        expected = [float(table[at, token]) for at, token in enumerate(prompt[1:])]
        assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(expected, abs=1e-5)


def test_calls_of_many_prompts_are_answered_in_parts(tiny: Running) -> None:
    prompts = [[3 + number % 200] * 200 for number in range(100)]
    assert sum(map(len, prompts)) > PART_TOKENS
    choices = tiny.complete(prompt=prompts, max_tokens=0, echo=True, logprobs=0)["choices"]
    for number in (0, 50, 99):
        alone = tiny.complete(prompt=prompts[number], max_tokens=0, echo=True, logprobs=0)["choices"][0]
        assert choices[number]["logprobs"] == alone["logprobs"]


def test_the_whole_context_and_one_more_token_can_be_scored(tiny: Running) -> None:
    length = tiny.model.max_length
    choice = tiny.complete(prompt=[5] * (length + 1), max_tokens=0, echo=True, logprobs=0)["choices"][0]
    assert len(choice["logprobs"]["token_logprobs"]) == length + 1
    refused = tiny.post("/v1/completions", {"prompt": [5] * (length + 2), "max_tokens": 0, "echo": True})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert str(length + 2) in refused.json()["error"]["message"]


# -- text of tokens --------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=30))
def test_token_texts_join_to_the_text(tiny: Running, text: str) -> None:
    ids = tiny.ids(text)
    names = TokenNames(tiny.tokenizer)
    tokens = names.joined(ids)
    assert len(tokens) == len(ids)
    assert "".join(tokens) == text
    assert text_offsets(text, tokens) == [len("".join(tokens[:at])) for at in range(len(tokens))]


def test_bytes_that_complete_no_character_stay_with_their_token(tiny: Running) -> None:
    names = TokenNames(tiny.tokenizer)
    vocabulary = tiny.tokenizer.get_vocab()
    lead, tail, letter = vocabulary["Ã"], vocabulary["©"], vocabulary["A"]  # bytes C3, A9 and 41
    assert names.joined([lead, tail]) == ["é", ""]
    assert names.joined([letter, tail]) == ["A", "\ufffd"]
    assert names.joined([lead, letter, tail]) == ["\ufffd", "A", "\ufffd"]
    assert names.joined([tail, lead]) == ["\ufffd", "\ufffd"]
    assert names.alone(lead) == "bytes:\\xc3"


def test_offsets_pass_over_tokens_that_left_no_text() -> None:
    assert text_offsets("Hello you", ["<s>", " Hello", " you", "</s>"]) == [0, 0, 5, 9]


# -- generation ------------------------------------------------------------------------------------------------------


def expected_generation(server: Running, prompt: str, **settings: Any) -> Any:
    request = GenerationRequest(
        prompt_ids=tuple(server.ids(prompt)), stop_token_ids=frozenset({server.tokenizer.eos_token_id}), **settings
    )
    return generate(server.model, server.tokenizer, [request])[0]


def test_generation_is_the_decoders_own(tiny: Running) -> None:
    drawn = {"temperature": 0.9, "top_p": 0.95, "top_k": 40}
    for wire, own in (({"temperature": 0}, {}), ({**drawn, "seed": 11}, {**drawn, "seed": 11})):
        expected = expected_generation(tiny, TEXT, max_new_tokens=12, num_top_logprobs=2, **own)
        answer = tiny.complete(prompt=TEXT, max_tokens=12, logprobs=2, **wire)
        choice = answer["choices"][0]
        assert choice["text"] == expected.text
        assert tuple(choice["logprobs"]["token_logprobs"]) == expected.logprobs
        assert choice["finish_reason"] == expected.finish_reason
        assert answer["usage"]["completion_tokens"] == len(expected.token_ids)


def test_the_token_read_off_the_scores_is_the_generated_one(tiny: Running) -> None:
    for text in (TEXT, "A. B.", "Question: é", "dog"):
        alone = tiny.complete(prompt=text, max_tokens=1, temperature=0, logprobs=2)["choices"][0]
        echoed = tiny.complete(prompt=text, max_tokens=1, temperature=0, logprobs=2, echo=True)["choices"][0]
        assert echoed["text"] == text + alone["text"]
        assert echoed["finish_reason"] == alone["finish_reason"]
        assert echoed["logprobs"]["token_logprobs"][-1] == pytest.approx(
            alone["logprobs"]["token_logprobs"][0], abs=1e-5
        )
        assert list(echoed["logprobs"]["top_logprobs"][-1]) == list(alone["logprobs"]["top_logprobs"][0])


def test_choices_of_one_prompt_have_seeds_of_their_own(tiny: Running) -> None:
    both = tiny.complete(prompt=[TEXT, "A."], max_tokens=8, seed=5, n=2)
    texts = [choice["text"] for choice in both["choices"]]
    assert [choice["index"] for choice in both["choices"]] == [0, 1, 2, 3]
    assert texts[0] != texts[1]
    assert texts == [
        expected_generation(tiny, prompt, max_new_tokens=8, temperature=1.0, seed=seed).text
        for prompt in (TEXT, "A.")
        for seed in (5, 6)
    ]
    assert both["usage"]["prompt_tokens"] == len(tiny.ids(TEXT)) + len(tiny.ids("A."))


def test_stop_strings_cut_the_text(tiny: Running) -> None:
    whole = tiny.complete(prompt=TEXT, max_tokens=16, seed=3)["choices"][0]["text"]
    stop = whole[3:5]
    cut = tiny.complete(prompt=TEXT, max_tokens=16, seed=3, stop=["no such thing", stop])["choices"][0]
    assert cut["text"] == whole[: whole.index(stop)]
    assert cut["finish_reason"] == "stop"


def test_an_empty_text_stands_for_the_prefix_token(tiny: Running) -> None:
    answer = tiny.complete(prompt="", max_tokens=4, temperature=0)
    given = tiny.complete(prompt=[tiny.tokenizer.bos_token_id], max_tokens=4, temperature=0)
    assert answer["choices"][0]["text"] == given["choices"][0]["text"]
    assert answer["usage"]["prompt_tokens"] == 1


def test_unset_max_tokens_is_what_fits(tiny: Running) -> None:
    length = tiny.model.max_length
    assert tiny.complete(prompt=[5] * (length - 3), seed=1)["usage"]["completion_tokens"] <= 3
    assert tiny.post("/v1/completions", {"prompt": [5] * (length - 3), "max_tokens": 4}).status_code == 400


# -- the other routes ------------------------------------------------------------------------------------------------


def test_models_health_and_the_tokenizer(tiny: Running) -> None:
    models = requests.get(f"{tiny.url}/v1/models", timeout=10).json()["data"]
    assert [(model["id"], model["max_model_len"]) for model in models] == [("tiny", tiny.model.max_length)]
    assert requests.get(f"{tiny.url}/v1/models/tiny", timeout=10).json()["id"] == "tiny"
    assert requests.get(f"{tiny.url}/v1/models/other", timeout=10).status_code == 404
    assert requests.get(f"{tiny.url}/health", timeout=10).status_code == 200
    assert requests.get(f"{tiny.url}/tokenizer_info", timeout=10).json()["eos_token"] == "<|im_end|>"
    made = tiny.post("/tokenize", {"prompt": "Aé fox", "return_token_strs": True}).json()
    assert made["tokens"] == tiny.ids("Aé fox")
    assert made["count"] == len(made["tokens"])
    assert "".join(made["token_strs"]) == "Aé fox"
    assert tiny.post("/detokenize", {"tokens": made["tokens"]}).json() == {"prompt": "Aé fox"}


# -- refusals --------------------------------------------------------------------------------------------------------

MALFORMED: list[tuple[dict[str, Any], str, str]] = [
    ({}, "prompt", "prompt is missing"),
    ({"prompt": None}, "prompt", "prompt is missing"),
    ({"prompt": []}, "prompt", "a list of texts"),
    ({"prompt": [[]]}, "prompt", "none of them empty"),
    ({"prompt": [1, "a"]}, "prompt", "a list of texts"),
    ({"prompt": [1, True]}, "prompt", "a list of texts"),
    ({"prompt": [-1]}, "prompt", "-1"),
    ({"prompt": {"a": 1}}, "prompt", "a list of texts"),
    ({"prompt": [100000]}, "prompt", "token id 100000"),
    ({"prompt": "\ud800"}, "prompt", "surrogate"),
    ({"prompt": ["a"] * 1025}, "prompt", "1024"),
    ({"prompt": "a " * 4000}, "prompt", "context holds"),
    ({"prompt": "a", "max_tokens": -1}, "max_tokens", "max_tokens is -1"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens", "echo"),
    ({"prompt": "a", "max_tokens": 1.5}, "max_tokens", "1.5"),
    ({"prompt": "a", "max_tokens": "5"}, "max_tokens", "'5'"),
    ({"prompt": "a", "max_tokens": 10**6}, "prompt", "context holds"),
    ({"prompt": "a", "temperature": -0.1}, "temperature", "-0.1"),
    ({"prompt": "a", "temperature": "hot"}, "temperature", "'hot'"),
    ({"prompt": "a", "temperature": True}, "temperature", "True"),
    ({"prompt": "a", "top_p": 0}, "top_p", "top_p is 0"),
    ({"prompt": "a", "top_p": 1.1}, "top_p", "1.1"),
    ({"prompt": "a", "top_k": -2}, "top_k", "-2"),
    ({"prompt": "a", "seed": 2**70}, "seed", "seed is"),
    ({"prompt": "a", "n": 0}, "n", "n is 0"),
    ({"prompt": "a", "n": 129}, "n", "1 to 128"),
    ({"prompt": "a", "logprobs": 21}, "logprobs", "0 to 20"),
    ({"prompt": "a", "logprobs": True}, "logprobs", "True"),
    ({"prompt": "a", "prompt_logprobs": -1}, "prompt_logprobs", "0 to 20"),
    ({"prompt": "a", "echo": "yes"}, "echo", "true or false"),
    ({"prompt": "a", "stop": [""]}, "stop", "none of them empty"),
    ({"prompt": "a", "stop": ["x"] * 65}, "stop", "64"),
    ({"prompt": "a", "stop": 5}, "stop", "stop is 5"),
    ({"prompt": "a", "stream": True}, "stream", "does not stream"),
    ({"prompt": "a", "best_of": 3}, "best_of", "does not support best_of"),
    ({"prompt": "a", "suffix": "z"}, "suffix", "does not support suffix"),
    ({"prompt": "a", "frequency_penalty": 0.5}, "frequency_penalty", "does not support"),
    ({"prompt": "a", "logit_bias": {"5": 1}}, "logit_bias", "does not support"),
    ({"prompt": "a", "continuations": ["b"]}, "continuations", "unknown field"),
]


@pytest.mark.parametrize(
    ("body", "param", "words"), MALFORMED, ids=[f"{i}-{case[1]}" for i, case in enumerate(MALFORMED)]
)
def test_malformed_calls_get_one_sentence_in_the_apis_shape(
    tiny: Running, body: dict[str, Any], param: str, words: str
) -> None:
    response = tiny.post("/v1/completions", body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert words in error["message"]
    assert "\n" not in error["message"]
    assert len(error["message"]) < 600


def test_settings_that_change_nothing_are_taken(tiny: Running) -> None:
    plain = {"prompt": "The quick", "max_tokens": 3, "temperature": 0}
    neutral = {"best_of": 1, "suffix": None, "frequency_penalty": 0.0, "logit_bias": {}, "stream": False, "user": "me"}
    assert tiny.complete(**plain)["choices"] == tiny.complete(**plain, **neutral)["choices"]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1]", "send an object"),
        (b'{"prompt": "a", "temperature": NaN}', "NaN is no JSON number"),
        (b'{"prompt": "a", "temperature": 1e400}', "temperature is inf"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"prompt": ' + b"[" * 100000 + b"]" * 100000 + b"}", "not JSON"),
    ],
)
def test_bodies_that_are_no_json_object(tiny: Running, raw: bytes, words: str) -> None:
    response = tiny.post("/v1/completions", data=raw, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


def test_wrong_paths_methods_models_and_content_types(tiny: Running) -> None:
    cases = [
        (requests.get(f"{tiny.url}/v1/chat/completions", timeout=10), 404),
        (requests.get(f"{tiny.url}/v1/completions", timeout=10), 405),
        (tiny.post("/v1/completions", {"prompt": "a", "model": "gpt-4"}), 404),
        (tiny.post("/v1/completions", {"prompt": "a", "model": 5}), 400),
        (tiny.post("/v1/completions", data=b'{"prompt": "a"}', headers={"content-type": "text/plain"}), 400),
        (tiny.post("/tokenize", {}), 400),
        (tiny.post("/detokenize", {"tokens": ["a"]}), 400),
        (tiny.post("/detokenize", {"tokens": [10**6]}), 400),
    ]
    for response, status in cases:
        assert response.status_code == status, response.text
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


# -- limits ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow(tiny: Running) -> Iterator[Running]:
    """A server that takes little: one call at work, none waiting, small bodies, little time."""
    limits = Limits(max_body_bytes=2000, concurrency=1, queue=0, timeout=0.8, body_timeout=0.5)
    with running(tiny.model, tiny.tokenizer, limits) as server:
        yield server


LONG = {"prompt": "The quick", "max_tokens": 240, "n": 128, "stop_token_ids": [], "seed": 0, "temperature": 1.0}


def test_a_large_body_is_refused_with_or_without_its_length(narrow: Running) -> None:
    raw = json.dumps({"prompt": "a" * 3000}).encode()
    headers = {"content-type": "application/json"}
    announced = narrow.post("/v1/completions", data=raw, headers=headers)
    chunked = narrow.post("/v1/completions", data=(raw[i : i + 500] for i in range(0, len(raw), 500)), headers=headers)
    for response in (announced, chunked):
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"


def test_a_body_that_does_not_arrive_is_given_up(narrow: Running) -> None:
    host, port = narrow.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{"
        )
        client.sendall(head.encode())
        assert client.recv(4096).startswith(b"HTTP/1.1 408")


def test_work_that_takes_too_long_and_calls_beyond_the_queue(narrow: Running) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: narrow.post("/v1/completions", LONG), range(4)))
    assert sorted(answer.status_code for answer in answers) == [429, 429, 429, 503]
    codes = {answer.status_code: answer.json()["error"]["code"] for answer in answers}
    assert codes == {429: "queue_full", 503: "timeout"}
    assert all(answer.headers["retry-after"] for answer in answers)
    assert len(narrow.complete(prompt="A", max_tokens=1, temperature=0)["choices"]) == 1


def test_a_client_that_leaves_takes_its_work_with_it(tiny: Running) -> None:
    host, port = tiny.url.removeprefix("http://").split(":")
    body = json.dumps(LONG).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        assert wait_until(lambda: len(tiny.service._running) == LONG["n"])
    assert wait_until(lambda: not tiny.service._running)


def wait_until(holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


# -- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "70000"], "70000 is not a whole number from 0 to 65535"),
        (["--queue", "many"], "'many' is not a whole number"),
        (["--timeout", "0"], "'0' is not a number of seconds above 0"),
        (["--model", "no-such-model"], "no-such-model"),
        (["--host", "no.such.host.invalid", "--port", "0"], "no.such.host.invalid"),
        (["--no-such-option"], "--no-such-option"),
        (["--write-tokenizer", "/"], "name a folder that is new or empty"),
    ],
)
def test_bad_options_end_with_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert len(err.splitlines()) == 1


def test_a_port_that_is_taken_is_said_before_a_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with bind("127.0.0.1", 0) as taken:
        assert main(["--port", str(taken.getsockname()[1])]) == 2
    assert "cannot be had" in capsys.readouterr().err


def test_an_address_that_others_reach_is_warned_about(capsys: pytest.CaptureFixture[str]) -> None:
    with bind("127.0.0.1", 0):
        assert capsys.readouterr().err == ""
    with bind("0.0.0.0", 0):
        assert "other machines" in capsys.readouterr().err


def test_the_command_serves_until_it_is_told_to_end(tiny_checkpoint: Path, tiny: Running) -> None:
    command = [
        sys.executable,
        "-m",
        "providers.serve",
        "--model",
        str(tiny_checkpoint),
        "--port",
        "0",
        "--name",
        "mine",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.fullmatch(
                r"serving mine at (http://127\.0\.0\.1:\d+)/v1 \(Ctrl-C ends\)\n", process.stdout.readline()
            )
            assert found
            body = {"model": "mine", "prompt": TEXT, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
            answer = requests.post(f"{found[1]}/v1/completions", json=body, timeout=60).json()
            assert answer["choices"] == tiny.complete(**{**body, "model": "tiny"})["choices"]
            assert answer["model"] == "mine"
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130)
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_models_are_named_by_their_references_last_part() -> None:
    assert model_names("/some/folder/tiny-llama", None) == ("tiny-llama", "/some/folder/tiny-llama")
    assert model_names("model.gguf", None) == ("model", "model.gguf")
    assert model_names("smollm2-135m-instruct", None) == ("smollm2-135m-instruct",)
    assert model_names("org/model", "mine") == ("mine", "org/model")
