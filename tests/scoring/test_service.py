"""The service joins what arrives together; cancelling one caller or failing one request leaves the others alone."""

import asyncio
import dataclasses
import gc
import importlib.util
import math
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import anyio
import pytest
import torch

from llm.errors import InputError
from llm.models import load_model
from llm.models.decoder import DecoderModel
from llm.scoring import service as service_module
from llm.scoring.engine import ScoringEngine
from llm.scoring.generation import generate
from llm.scoring.plain import PlainScorer
from llm.scoring.requests import Generation, GenerationRequest, ScoreRequest, TokenScores
from llm.scoring.rows import GenerationError
from llm.scoring.service import ScoringService
from llm.scoring.store import ScoreStore, StoredScorer, StoreFullError

SOURCE = Path(__file__).resolve().parents[2] / "src"
BACKENDS = ["asyncio", *(["trio"] if importlib.util.find_spec("trio") else [])]


class Counting(ScoringEngine):
    """The real engine, with a record of how many requests each call had; `gate` holds calls back."""

    def __init__(self, model) -> None:
        super().__init__(model)
        self.calls: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def score(self, requests, *, top_k=0, on_scored=None):
        self.calls.append(len(requests))
        assert self.gate.wait(60)
        return super().score(requests, top_k=top_k, on_scored=on_scored)


class Silent(PlainScorer):
    """A scorer that reports nothing before it has all."""


@pytest.fixture(scope="module")
def tiny(tiny_checkpoint):
    return load_model(str(tiny_checkpoint), dtype="float32", device="cpu")


@pytest.fixture
def engine(tiny):
    return Counting(tiny[0])


@pytest.fixture
def service(tiny, engine):
    one = ScoringService(*tiny, engine, batch_size=4)
    yield one
    engine.gate.set()
    one.close(timeout=30)


def choices(number: int) -> list[ScoreRequest]:
    context = (*range(3, 40), 100 + number)
    return [ScoreRequest(context_ids=context, continuation_ids=(50 + choice, 9)) for choice in range(4)]


def prompt(number: int, **settings) -> GenerationRequest:
    settings = {"max_new_tokens": 2 + 3 * number, "seed": number, "temperature": float(number % 2), **settings}
    return GenerationRequest(prompt_ids=(5, 6, 7 + number), **settings)


WIDE = TokenScores(logprobs=(-1.0,) * 400, is_greedy=True)


def gather(calls, backend: str = "asyncio"):
    """Results, or exceptions, of concurrent coroutine calls in one event loop."""
    results: list = [None] * len(calls)

    async def one(index):
        try:
            results[index] = await calls[index]()
        except Exception as error:
            results[index] = error

    async def main():
        async with anyio.create_task_group() as group:
            for index in range(len(calls)):
                group.start_soon(one, index)

    anyio.run(main, backend=backend)
    return results


# -- together ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_arrives_together_is_one_engine_call(tiny, engine, service, backend):
    found = gather([lambda n=n: service.score(choices(n)) for n in range(40)], backend)
    assert engine.calls == [160]
    wanted = ScoringEngine(tiny[0])
    assert found == [wanted.score(choices(n)) for n in range(40)]


def test_what_arrives_while_the_engine_works_is_the_next_call(engine, service):
    engine.gate.clear()
    first = service.start_score(choices(0))
    while not engine.calls:
        time.sleep(0.001)
    others = [service.start_score(choices(n)) for n in range(1, 9)]
    time.sleep(0.05)
    assert engine.calls == [4]
    engine.gate.set()
    assert [len(future.result(60)) for future in [first, *others]] == [4] * 9
    assert engine.calls == [4, 32]


def test_each_request_keeps_its_own_top_k(tiny, engine, service):
    found = gather([lambda n=n: service.score(choices(n), top_k=n % 3) for n in range(9)])
    assert sorted(engine.calls) == [12, 12, 12]
    assert found == [ScoringEngine(tiny[0]).score(choices(n), top_k=n % 3) for n in range(9)]


def test_a_scorer_that_reports_nothing_serves_too(tiny):
    service = ScoringService(*tiny, Silent(tiny[0]))
    assert gather([lambda n=n: service.score(choices(n)) for n in range(3)]) == [
        Silent(tiny[0]).score(choices(n)) for n in range(3)
    ]
    assert gather([lambda: service.score([])]) == [[]]
    service.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_p37_generations_run_together_each_as_if_alone(tiny, service, backend):
    requests = [prompt(number) for number in range(10)]
    scored = gather([lambda r=r: service.generate(r) for r in requests] + [lambda: service.score(choices(1))], backend)
    assert scored[:-1] == [generate(*tiny, [request])[0] for request in requests]
    assert scored[-1] == ScoringEngine(tiny[0]).score(choices(1))


def test_a_generation_joins_the_batch_that_is_running(tiny, service):
    long = service.start_generation(prompt(1, max_new_tokens=200))
    while not service._running:
        time.sleep(0.001)
    short = service.start_generation(prompt(2))
    assert short.result(60) == generate(*tiny, [prompt(2)])[0]
    assert not long.done()
    scores = service.start_score(choices(3)).result(60)
    assert not long.done()
    assert scores == ScoringEngine(tiny[0]).score(choices(3))
    assert long.result(60) == generate(*tiny, [prompt(1, max_new_tokens=200)])[0]


# -- one leaves, one fails -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_cancelling_a_caller_leaves_the_others_alone(tiny, engine, service, backend):
    found: dict[str, object] = {}
    engine.gate.clear()

    async def ask(name, call):
        found[name] = await call

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(ask, "kept", service.score(choices(1)))
            with anyio.move_on_after(0.2) as waiting:
                await service.score(choices(2))
            assert waiting.cancelled_caught
            with anyio.move_on_after(0.2) as behind:
                await service.score(choices(3))
            assert behind.cancelled_caught
            group.start_soon(ask, "later", service.score(choices(4)))
            await anyio.sleep(0.05)
            engine.gate.set()
        with anyio.move_on_after(0.05) as generating:
            await service.generate(prompt(1, max_new_tokens=240))
        assert generating.cancelled_caught
        found["generated"] = await service.generate(prompt(4))

    anyio.run(main, backend=backend)
    wanted = ScoringEngine(tiny[0])
    assert found["kept"] == wanted.score(choices(1))
    assert found["later"] == wanted.score(choices(4))
    assert found["generated"] == generate(*tiny, [prompt(4)])[0]
    assert sum(engine.calls) == 8 + 4, "what was cancelled before its turn is not computed"
    assert not service._running


def test_a_failure_reaches_only_its_own_caller(tiny, engine, service):
    guilty = [ScoreRequest(context_ids=(5,), continuation_ids=(99_999,))]
    calls = [lambda n=n: service.score(choices(n)) for n in range(8)]
    calls.insert(3, lambda: service.score(guilty))
    found = gather(calls)
    error = found.pop(3)
    assert isinstance(error, InputError)
    assert "99999" in str(error)
    assert found == [ScoringEngine(tiny[0]).score(choices(n)) for n in range(8)]
    assert engine.calls[0] == 33
    assert len(engine.calls) <= 1 + 2 * 4, "halves, not one call for each"


def test_running_out_of_memory_halves_the_call(tiny):
    class Cramped(Counting):
        def score(self, requests, *, top_k=0, on_scored=None):
            if len(requests) > 10:
                self.calls.append(len(requests))
                raise MemoryError
            return super().score(requests, top_k=top_k, on_scored=on_scored)

    engine = Cramped(tiny[0])
    service = ScoringService(*tiny, engine)
    found = gather([lambda n=n: service.score(choices(n)) for n in range(8)])
    assert found == [ScoringEngine(tiny[0]).score(choices(n)) for n in range(8)]
    assert engine.calls == [32, 16, 8, 8, 16, 8, 8]
    service.close()


def test_a_full_disk_ends_every_call_at_once(tiny, tmp_path):
    engine = Counting(tiny[0])
    store = ScoreStore(tmp_path / "s.sqlite")
    store.put("tiny", [ScoreRequest(context_ids=(n + 1,), continuation_ids=(1,)) for n in range(5)], [WIDE] * 5)
    store._open().execute("PRAGMA max_page_count = 1")  # SQLite's own limit gives the error of a full disk
    service = ScoringService(*tiny, StoredScorer(engine, store, "tiny"))
    found = gather([lambda n=n: service.score(choices(n)) for n in range(60)])
    assert {type(error) for error in found} == {StoreFullError}
    assert len(engine.calls) <= 1
    service.close()


def test_a_generation_that_fails_reaches_only_its_own_caller(tiny):
    model, tokenizer = tiny
    broken = DecoderModel(dataclasses.replace(model.config, tie_word_embeddings=False))
    broken.load_state_dict({**model.state_dict(), "lm_head.weight": model.embed_tokens.weight.clone()})
    broken.embed_tokens.weight[7] = math.nan
    sound = [GenerationRequest(prompt_ids=(20, 21 + n), max_new_tokens=5) for n in range(3)]
    wanted = generate(model, tokenizer, sound)
    assert not any(7 in one.token_ids for one in wanted)
    service = ScoringService(broken, tokenizer, ScoringEngine(broken))
    bad = GenerationRequest(prompt_ids=(20, 7), max_new_tokens=5)
    refused = GenerationRequest(prompt_ids=(), max_new_tokens=5)
    found = gather([lambda r=r: service.generate(r) for r in [bad, *sound, refused]])
    assert isinstance(found[0], GenerationError)
    assert isinstance(found[4], InputError)
    assert found[1:4] == wanted
    service.close()


def test_a_step_that_raises_is_made_good_row_by_row(tiny):
    model, tokenizer = tiny

    class Fragile:
        config, device, dtype, max_length = model.config, model.device, model.dtype, model.max_length

        def hidden_states(self, input_ids, positions, attend):
            if 99 in input_ids:
                raise RuntimeError("a kernel has failed")
            return model.hidden_states(input_ids, positions, attend)

        def project(self, hidden):
            return model.project(hidden)

    service = ScoringService(Fragile(), tokenizer, ScoringEngine(model))
    sound = [prompt(number) for number in range(4)]
    wanted = generate(model, tokenizer, sound)
    assert not any(99 in one.token_ids for one in wanted)
    bad = GenerationRequest(prompt_ids=(5, 99), max_new_tokens=3)
    found = gather([lambda r=r: service.generate(r) for r in [*sound, bad]])
    assert found[:4] == wanted
    assert isinstance(found[4], RuntimeError)
    assert "kernel" in str(found[4])
    assert isinstance(gather([lambda: service.generate(sound[0])])[0], Generation)
    service.close()


# -- ending --------------------------------------------------------------------------------------------------------


def test_a_closed_service_refuses_and_lets_go_of_who_waits(engine, service):
    engine.gate.clear()
    service.start_score(choices(0))
    while not engine.calls:
        time.sleep(0.001)
    waiting = service.start_score(choices(1))
    closing = threading.Thread(target=service.close)
    closing.start()
    engine.gate.set()
    closing.join(30)
    with pytest.raises(RuntimeError, match="closed before"):
        waiting.result(30)
    with pytest.raises(RuntimeError, match="is closed"):
        service.start_score(choices(2))
    service.close()


def test_an_idle_worker_ends_and_another_one_starts(tiny, engine, service, monkeypatch):
    monkeypatch.setattr(service_module, "IDLE_SECONDS", 0.05)
    for number in range(2):
        assert len(service.start_score(choices(number)).result(30)) == 4
        deadline = time.monotonic() + 30
        while service._thread is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert service._thread is None
    forgotten = weakref.ref(ScoringService(*tiny, engine))
    gc.collect()
    assert forgotten() is None


def test_event_loops_come_and_go(tiny, service):
    for _ in range(3):
        assert len(asyncio.run(service.score(choices(1)))) == 4

    async def leave_at_once():
        task = asyncio.ensure_future(service.generate(prompt(1, max_new_tokens=100)))
        await asyncio.sleep(0.02)
        task.cancel()

    asyncio.run(leave_at_once())
    assert asyncio.run(service.generate(prompt(3))) == generate(*tiny, [prompt(3)])[0]


EXIT = """
import sys
import torch
from llm.models import load_model
from llm.scoring.engine import ScoringEngine
from llm.scoring.requests import GenerationRequest
from llm.scoring.service import ScoringService
model, tokenizer = load_model(sys.argv[1], dtype="float32", device="cpu")
service = ScoringService(model, tokenizer, ScoringEngine(model))
service.start_generation(GenerationRequest(prompt_ids=(5, 6), max_new_tokens=250))
print("asked")
"""


def test_the_interpreter_exits_cleanly_while_something_is_computed(tiny_checkpoint):
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", EXIT, str(tiny_checkpoint)], capture_output=True, text=True, env=environment, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "asked\n", "")


def test_the_worker_uses_as_many_torch_threads_as_its_maker(tiny):
    seen: list[int] = []

    class Looking(ScoringEngine):
        def score(self, requests, *, top_k=0, on_scored=None):
            seen.append(torch.get_num_threads())
            return super().score(requests, top_k=top_k, on_scored=on_scored)

    service = ScoringService(*tiny, Looking(tiny[0]))
    service.start_score(choices(0)).result(30)
    service.close()
    assert seen == [torch.get_num_threads()]
