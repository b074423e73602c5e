"""Memory that runs out in the middle of a call: packs are halved, scores are the same, nothing is done twice."""

import dataclasses
import functools
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from llm.errors import InputError
from llm.models import products
from llm.models.config import DecoderConfig
from llm.models.decoder import DecoderModel
from llm.scoring.engine import ScoringEngine
from llm.scoring.plain import make_scorer
from llm.scoring.requests import ScoreRequest, TokenScores
from llm.scoring.within_memory import MOST_GUILTY, PatientEngine, has_nan, is_out_of_memory

MIB = 1 << 20


@pytest.fixture(autouse=True)
def torchs_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN, where it is chosen, says of a failed allocation only that it could not create a primitive."""
    monkeypatch.setitem(products._CHOSEN, torch.float32, "torch")


@pytest.fixture(scope="module")
def wide() -> DecoderModel:
    """Few weights and wide activations: a pack of 1,024 tokens needs half a gigabyte for a moment, in layer 0."""
    torch.manual_seed(0)
    config = DecoderConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=1 << 16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=512,
    )
    model = DecoderModel(config)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.02)
    return model.eval()


def requests(count: int) -> list[ScoreRequest]:
    return [ScoreRequest(context_ids=(n % 60 + 1, n // 60 + 1) * 20, continuation_ids=(3, 4)) for n in range(count)]


@contextmanager
def at_most(more: int) -> Iterator[None]:
    """An allocator's limit: the process may take `more` bytes beyond what it has."""
    (now,) = (int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmSize" in line)
    kept = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now * 1024 + more, kept[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, kept)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the limit is set by Linux's counts")
def in_a_process_of_its_own(test: Callable[..., None]) -> Callable[..., None]:
    """What a process has freed it may use again without asking for more: the limit tells only in a fresh one."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        if os.environ.get("TESTED_ALONE"):
            test(**fixtures)
            return
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{__file__}::{test.__name__}"]
        done = subprocess.run(
            words, env={**os.environ, "TESTED_ALONE": "1"}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout

    return run


@in_a_process_of_its_own
def test_packs_are_halved_until_they_fit_and_scores_are_the_same(wide: DecoderModel) -> None:
    asked = requests(60)
    engine = make_scorer(wide, pack_tokens=1024)
    assert isinstance(engine, PatientEngine)
    heard: list[int] = []
    with at_most(400 * MIB), pytest.warns(UserWarning, match="packs now hold 512 tokens"):
        found = engine.score(asked, on_scored=lambda indices, scores: heard.extend(indices))
    assert engine.pack_tokens <= 512
    assert sorted(heard) == list(range(60)), "each is told once"
    assert found == ScoringEngine(wide).score(asked)


class Failing(PatientEngine):
    """Runs out of memory once, after it has answered some; then whenever a pack is above `fits`."""

    fits = 256
    asked: list[int]

    def _run(self, run, answers, top_k):
        self.asked.append(len(answers.places))
        if self.pack_tokens > self.fits:
            done = next(iter(answers.places))
            answers.give([(done, TokenScores(logprobs=(-1.0, -2.0), is_greedy=False))])
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:116] DefaultCPUAllocator: can't allocate memory")
        super()._run(run, answers, top_k)


def test_what_was_done_is_not_done_again(wide: DecoderModel) -> None:
    engine = Failing(wide, pack_tokens=1024)
    engine.asked = []
    with pytest.warns(UserWarning, match="256 tokens"):
        found = engine.score(requests(10))
    assert engine.asked == [10, 9, 8]
    assert [one.logprobs for one in found[:2]] == [(-1.0, -2.0)] * 2, "as they were told the first time"
    assert found[2:] == ScoringEngine(wide).score(requests(10))[2:]


def test_no_memory_for_the_smallest_pack_is_one_sentence(wide: DecoderModel) -> None:
    engine = Failing(wide, pack_tokens=1024)
    engine.asked, engine.fits = [], 0
    with (
        pytest.warns(UserWarning, match="memory ran out"),
        pytest.raises(InputError, match="not enough memory to score a request of 42 tokens"),
    ):
        engine.score(requests(10))


def test_other_faults_pass_through(wide: DecoderModel) -> None:
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    with pytest.raises(InputError, match="token id 99"):
        make_scorer(wide).score([ScoreRequest(context_ids=(99,), continuation_ids=(1,))])


def spoiled(model: DecoderModel, token: int) -> DecoderModel:
    """The same model with one token's embedding gone bad."""
    other = DecoderModel(dataclasses.replace(model.config, tie_word_embeddings=False))
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        other.embed_tokens.weight[token] = float("nan")
    return other.eval()


def test_scores_that_are_no_numbers_stay_with_their_requests(wide: DecoderModel) -> None:
    """All share a beginning shorter than a tile, whose queries see the bad token's key, masked."""
    asked = [ScoreRequest(context_ids=(1, 2, n), continuation_ids=(4, 5)) for n in range(3, 20)]
    engine = make_scorer(spoiled(wide, 7))
    assert isinstance(engine, PatientEngine)
    heard: dict[int, TokenScores] = {}
    found = engine.score([*asked, asked[0]], on_scored=lambda where, what: heard.update(zip(where, what, strict=True)))
    bad = [n for n, scores in enumerate(found) if has_nan(scores)]
    assert bad == [n for n, request in enumerate(asked) if 7 in request.context_ids]
    honest = [n for n in range(len(asked)) if n not in bad]
    wanted = ScoringEngine(wide).score(asked)
    assert [found[n] for n in honest] == [wanted[n] for n in honest]
    assert found[-1] == found[0]
    assert sorted(heard) == list(range(len(found)))
    again = engine.score([asked[n] for n in honest])
    assert again == [wanted[n] for n in honest], "nothing bad is kept between calls"


def test_a_model_that_gives_no_numbers_is_believed_in_time(wide: DecoderModel) -> None:
    asked = [ScoreRequest(context_ids=(1, n // 50 + 2, n % 50 + 2), continuation_ids=(4,)) for n in range(200)]

    class Counted(PatientEngine):
        calls = 0

        def _score(self, answers, top_k):
            self.calls += 1
            super()._score(answers, top_k)

    engine = Counted(spoiled(wide, 1))
    assert all(map(has_nan, engine.score(asked)))
    assert engine.calls == 1 + MOST_GUILTY
