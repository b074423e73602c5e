"""Memory that runs out in the middle of a call: packs are halved, scores are the same, nothing is done twice."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from llm.errors import InputError
from llm.models.config import DecoderConfig
from llm.models.decoder import DecoderModel
from llm.scoring.engine import ScoringEngine
from llm.scoring.plain import make_scorer
from llm.scoring.requests import ScoreRequest, TokenScores
from llm.scoring.within_memory import PatientEngine, is_out_of_memory

MIB = 1 << 20


@pytest.fixture(scope="module")
def wide() -> DecoderModel:
    """Few weights and wide activations: a pack of 1,024 tokens needs half a gigabyte for a moment."""
    torch.manual_seed(0)
    config = DecoderConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=1 << 16,
        num_hidden_layers=1,
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
def test_packs_are_halved_until_they_fit_and_scores_are_the_same(wide: DecoderModel) -> None:
    asked = requests(60)
    engine = make_scorer(wide)
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
    engine = Failing(wide)
    engine.asked = []
    with pytest.warns(UserWarning, match="256 tokens"):
        found = engine.score(requests(10))
    assert engine.asked == [10, 9, 8]
    assert [one.logprobs for one in found[:2]] == [(-1.0, -2.0)] * 2, "as they were told the first time"
    assert found[2:] == ScoringEngine(wide).score(requests(10))[2:]


def test_no_memory_for_the_smallest_pack_is_one_sentence(wide: DecoderModel) -> None:
    engine = Failing(wide)
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
