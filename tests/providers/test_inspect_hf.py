"""Our provider beside Inspect's own hf provider where the two read one setting differently, and where they must not."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from inspect_ai.model import ChatMessageUser, GenerateConfig, Model, ModelOutput, get_model

from benchmarks.peers import stock_provider
from benchmarks.twins import ARCHITECTURES, make_twin

PROMPT = [ChatMessageUser(content="Which is a liquid?\nA) water\nB) stone")]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Model]:
    """(our model, the peer's) of one tiny checkpoint with a chat template."""
    folder = tmp_path_factory.mktemp("hf") / "twin"
    make_twin(ARCHITECTURES["qwen3"], folder)
    return get_model(f"decoder/{folder}"), stock_provider(folder)


def ask(model: Model, messages: list[Any] = PROMPT, **config: Any) -> ModelOutput:
    return asyncio.run(model.generate(messages, config=GenerateConfig(max_connections=1, **config)))


def test_usage_is_counted_alike(pair: tuple[Model, Model]) -> None:
    mine, theirs = (ask(model, max_tokens=9) for model in pair)
    assert mine.usage == theirs.usage
    assert mine.completion == theirs.completion


def test_a_stop_sequence_ends_both_and_only_the_peer_keeps_it(pair: tuple[Model, Model]) -> None:
    whole = ask(pair[0], max_tokens=24).completion
    stop = next(part for part in whole[8:] if whole.count(part) >= 1 and part.isascii() and part.isprintable())
    mine, theirs = (ask(model, max_tokens=24, stop_seqs=[stop]) for model in pair)
    assert mine.completion == whole[: whole.index(stop)]
    assert theirs.completion.startswith(mine.completion + stop)
    assert mine.stop_reason == "stop"


def test_choices_are_as_many_as_asked_and_repeat_with_the_seed(pair: tuple[Model, Model]) -> None:
    settings = {"max_tokens": 8, "temperature": 1.0, "seed": 7}
    one, two = (ask(pair[0], num_choices=3, **settings) for _ in range(2))
    assert [choice.message.text for choice in one.choices] == [choice.message.text for choice in two.choices]
    assert len({choice.message.text for choice in one.choices}) > 1
    assert one.usage.output_tokens <= 24


def test_the_chosen_token_is_reported_when_it_is_not_the_likeliest(pair: tuple[Model, Model]) -> None:
    output = ask(pair[0], max_tokens=40, temperature=2.0, seed=3, logprobs=True, top_logprobs=2)
    entries = output.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries if entry.token not in ("<|im_end|>",)) == output.completion
    assert any(entry.token not in [top.token for top in entry.top_logprobs] for entry in entries)
    for entry in entries:
        assert entry.logprob <= entry.top_logprobs[0].logprob


def test_counting_is_the_peers_tokenizers(pair: tuple[Model, Model]) -> None:
    text = "naïve café → 水\n\nA) water"
    ids = asyncio.run(pair[0].api.tokenize(text))
    assert ids == pair[1].api.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert asyncio.run(pair[0].api.count_text_tokens(text)) == len(ids)


def test_a_prompt_without_room_is_said_where_the_peer_runs_over(pair: tuple[Model, Model], tmp_path: Path) -> None:
    long = [ChatMessageUser(content="water " * 200)]
    output = ask(pair[0], long, max_tokens=4)
    assert (output.stop_reason, output.completion) == ("model_length", "")
    assert ask(pair[1], long, max_tokens=4).usage.output_tokens == 4
