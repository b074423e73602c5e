"""The store keeps floats to the bit, survives kills, damage and a full disk, and serves two processes at once."""

import math
import os
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llm.errors import InputError
from llm.models import load_model
from llm.scoring.engine import ScoringEngine
from llm.scoring.plain import PlainScorer
from llm.scoring.requests import ScoreRequest, TokenScores
from llm.scoring.store import ScoreStore, StoredScorer, StoreFullError
from llm.scoring.store_records import request_digest

SOURCE = Path(__file__).resolve().parents[2] / "src"


def request(*context: int, continuation: tuple[int, ...] = (1, 2)) -> ScoreRequest:
    return ScoreRequest(context_ids=context, continuation_ids=continuation)


def scores(*logprobs: float, is_greedy: bool = False) -> TokenScores:
    return TokenScores(logprobs=logprobs, is_greedy=is_greedy)


def many(count: int, start: int = 0) -> tuple[list[ScoreRequest], list[TokenScores]]:
    numbers = range(start, start + count)
    return [request(number + 1) for number in numbers], [scores(-number / 7, -1e-9) for number in numbers]


def run_python(code: str, *arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


class Counting:
    """A scorer that counts what it is asked for; `fail_after` requests it breaks off."""

    def __init__(self, scorer, fail_after: int | None = None) -> None:
        self.scorer, self.fail_after, self.num_requests = scorer, fail_after, 0

    def score(self, requests, *, top_k=0):
        self.num_requests += len(requests)
        if self.fail_after is not None and self.num_requests > self.fail_after:
            raise KeyboardInterrupt
        return self.scorer.score(requests, top_k=top_k)


# -- what goes in comes out ----------------------------------------------------------------------------------------


def test_floats_come_back_to_the_bit(tmp_path):
    kept = [
        scores(-0.0, -5e-324, -0.1, -1e308, is_greedy=True),
        scores(float.fromhex("-0x1.5555555555555p-2")),
        scores(is_greedy=True),
    ]
    asked = [request(1), request(2), request(3, continuation=())]
    store = ScoreStore(tmp_path / "deep" / "er" / "s.sqlite")
    store.put("m", asked, kept)
    store.close()
    again = ScoreStore(tmp_path / "deep" / "er" / "s.sqlite")
    found = again.get("m", [*asked, request(4)])
    assert found == [*kept, None]
    assert struct.pack("<d", found[0].logprobs[0]) == struct.pack("<d", -0.0)
    assert again.verify() == []


def test_namespaces_and_requests_are_told_apart(tmp_path):
    store = ScoreStore(tmp_path / "s.sqlite")
    one = ScoreRequest(context_ids=(1, 2), continuation_ids=(3,))
    cut_elsewhere = ScoreRequest(context_ids=(1,), continuation_ids=(2, 3))
    store.put("float32", [one], [scores(-1.0)])
    assert store.get("float32", [one, cut_elsewhere]) == [scores(-1.0), None]
    assert store.get("bfloat16", [one]) == [None]
    store.put("float32", [one], [scores(-1.5)])
    assert store.get("float32", [one, one]) == [scores(-1.5)] * 2
    info = store.info()
    assert (info.num_requests, dict(info.by_namespace)) == (1, {"bfloat16": 0, "float32": 1})
    assert 0 < info.num_bytes < 1 << 20
    assert len({request_digest(r) for r in (one, cut_elsewhere, request(1), request(2))}) == 4


def test_a_stored_scorer_answers_with_the_engines_own_floats(tmp_path, tiny_checkpoint):
    model, _ = load_model(str(tiny_checkpoint), dtype="float32", device="cpu")
    asked = [request(5, 9, 20 + n % 7, continuation=(30 + n % 5, 40)) for n in range(60)]
    for scorer in (ScoringEngine(model), PlainScorer(model)):
        wanted = scorer.score(asked)
        store = ScoreStore(tmp_path / f"{type(scorer).__name__}.sqlite")
        stored = StoredScorer(scorer, store, "tiny")
        heard: dict[int, TokenScores] = {}
        assert stored.score(asked[:20]) == wanted[:20]
        assert stored.score(asked, on_scored=lambda i, s, heard=heard: heard.update(zip(i, s, strict=True))) == wanted
        assert [heard[index] for index in range(60)] == wanted
        assert (stored.stats.num_hits, stored.stats.num_misses) == (20, 35)
        again = StoredScorer(Counting(scorer), store, "tiny")
        assert again.score(asked[::-1]) == wanted[::-1]
        assert again.scorer.num_requests == 0
        with_top = again.score(asked[:3], top_k=2)
        assert [len(one.top[0]) for one in with_top] == [2, 2, 2]
        assert [one.logprobs for one in with_top] == [one.logprobs for one in wanted[:3]]
        assert again.scorer.num_requests == 3


def test_scores_that_are_not_finite_are_not_kept(tmp_path):
    class Broken:
        def score(self, requests, *, top_k=0):
            return [scores(math.nan if one.context_ids[0] == 2 else -1.0) for one in requests]

    stored = StoredScorer(Broken(), ScoreStore(tmp_path / "s.sqlite"), "m")
    assert math.isnan(stored.score([request(1), request(2)])[1].logprobs[0])
    assert stored.store.get("m", [request(1), request(2)]) == [scores(-1.0), None]


# -- resuming ------------------------------------------------------------------------------------------------------


def test_what_was_done_before_a_break_is_not_done_again(tmp_path, tiny_checkpoint):
    model, _ = load_model(str(tiny_checkpoint), dtype="float32", device="cpu")
    asked = [request(*(7 for _ in range(200)), n, continuation=(9,)) for n in range(5, 205)]
    breaking = StoredScorer(Counting(PlainScorer(model), fail_after=120), ScoreStore(tmp_path / "s"), "m")
    with pytest.raises(KeyboardInterrupt):
        breaking.score(asked)
    kept = breaking.store.info().num_requests
    assert 0 < kept <= 120
    resumed = StoredScorer(Counting(PlainScorer(model)), ScoreStore(tmp_path / "s"), "m")
    assert resumed.score(asked) == PlainScorer(model).score(asked)
    assert resumed.scorer.num_requests == 200 - kept


WRITER = """
import sys, itertools
from llm.scoring.requests import ScoreRequest, TokenScores
from llm.scoring.store import ScoreStore
store = ScoreStore(sys.argv[1])
for batch in itertools.count(int(sys.argv[2])):
    asked = [ScoreRequest(context_ids=(batch + 1,), continuation_ids=(n,)) for n in range(50)]
    store.put("m", asked, [TokenScores(logprobs=(-batch / 3,) * 20, is_greedy=True)] * 50)
    print(batch, flush=True)
    if batch + 1 == int(sys.argv[3]):
        break
"""


def batch_of(number: int) -> list[ScoreRequest]:
    return [request(number + 1, continuation=(n,)) for n in range(50)]


def test_a_kill_while_writing_loses_no_finished_batch_and_leaves_no_half_one(tmp_path):
    path = tmp_path / "s.sqlite"
    first = 0
    for wait in (0.05, 0.12, 0.3):
        process = run_python(WRITER, path, first, -1)
        assert process.stdout is not None
        assert process.stdout.readline(), process.stderr.read()
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        said = process.stdout.read().split("\n")
        process.wait()
        reported = max([first, *(int(line) for line in said[:-1] if line)])
        store = ScoreStore(path)
        assert store.verify() == []
        for number in range(reported + 1):
            assert store.get("m", batch_of(number)) == [scores(*[-number / 3] * 20, is_greedy=True)] * 50
        beyond = store.get("m", batch_of(reported + 1))
        assert beyond.count(None) in (0, 50)
        first = reported + 1
        store.close()


def test_two_processes_write_and_read_at_once(tmp_path):
    path = tmp_path / "s.sqlite"
    processes = [run_python(WRITER, path, first, first + 60) for first in (0, 1000)]
    for process in processes:
        _, stderr = process.communicate(timeout=120)
        assert (process.returncode, stderr) == (0, "")
    store = ScoreStore(path)
    assert store.info().num_requests == 2 * 60 * 50
    assert store.verify() == []
    assert not list(tmp_path.glob("*.damaged*"))


# -- damage --------------------------------------------------------------------------------------------------------


def damage_header(data: bytearray) -> None:
    data[:100] = b"\x5a" * 100


def damage_records(data: bytearray) -> None:
    """Flip one bit in every stored -1.25: SQLite itself cannot notice that."""
    needle = struct.pack("<d", -1.25)
    at = data.find(needle)
    while at >= 0:
        data[at] ^= 1
        at = data.find(needle, at + 1)


def damage_page(data: bytearray) -> None:
    data[8192:16384] = os.urandom(8192)


def cut(data: bytearray) -> None:
    del data[len(data) // 2 :]


def opened_and_read(path: Path, asked: list[ScoreRequest]) -> ScoreStore:
    store = ScoreStore(path)
    assert set(store.get("m", asked)) == {None}
    return store


@pytest.mark.parametrize("damage", [damage_header, damage_records, damage_page, cut])
def test_a_damaged_file_is_set_aside_and_rebuilt(tmp_path, damage):
    path = tmp_path / "s.sqlite"
    store = ScoreStore(path)
    asked = [request(number + 1) for number in range(2000)]
    store.put("m", asked, [scores(-1.25, -2.5)] * 2000)
    store.close()
    data = bytearray(path.read_bytes())
    damage(data)
    path.write_bytes(data)

    with pytest.warns(UserWarning, match=r"s\.sqlite is damaged .* s\.sqlite\.damaged-1, and a new one is begun"):
        again = opened_and_read(path, asked)
    again.put("m", asked, [scores(-1.25, -2.5)] * 2000)
    assert again.get("m", asked[:3]) == [scores(-1.25, -2.5)] * 3
    assert again.verify() == []
    assert (tmp_path / "s.sqlite.damaged-1").stat().st_size == len(data)
    again.close()
    path.write_bytes(b"not a database at all")
    with pytest.warns(UserWarning, match="damaged-2"):
        assert ScoreStore(path).info().num_requests == 0


def test_verify_tells_what_is_wrong_and_changes_nothing(tmp_path):
    path = tmp_path / "s.sqlite"
    store = ScoreStore(path)
    store.put("m", [request(1), request(2)], [scores(-1.25), scores(-2.5)])
    store.close()
    data = bytearray(path.read_bytes())
    damage_records(data)
    path.write_bytes(data)
    assert ScoreStore(path).verify() == ["1 stored scores do not match their checksums"]
    assert path.read_bytes()[: len(data)] == data


def test_another_programs_database_is_left_alone(tmp_path):
    path = tmp_path / "mine.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    with pytest.raises(InputError, match=r"mine\.sqlite is a database of another program"):
        ScoreStore(path)
    assert sqlite3.connect(path).execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]


def test_a_place_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"score store .* cannot be used"):
        ScoreStore(tmp_path / "file" / "s.sqlite")
    with pytest.raises(InputError, match=r"cannot be used .* writable file"):
        ScoreStore(tmp_path)


# -- size ----------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_one_sentence_and_what_was_stored_stays(tmp_path):
    store = ScoreStore(tmp_path / "s.sqlite")
    store.put("m", *many(50))
    store._open().execute("PRAGMA max_page_count = 1")  # SQLite's own limit gives the error of a full disk
    with pytest.raises(StoreFullError, match=r"the disk is full at .*: free some space .* same command"):
        store.put("m", *many(100_000, start=50))
    store.close()
    store.put("m", *many(10, start=50))
    assert store.get("m", many(60)[0]) == many(60)[1]


def test_pruning_drops_what_was_not_used_for_longest(tmp_path, monkeypatch):
    store = ScoreStore(tmp_path / "s.sqlite")
    now = time.time()
    for age, start in ((50_000, 0), (20_000, 4000)):
        monkeypatch.setattr(time, "time", lambda age=age: now - age)
        store.put("m", *many(4000, start))
    monkeypatch.setattr(time, "time", lambda: now)
    used_again = many(100)[0]
    store.get("m", used_again)

    size = store.info().num_bytes
    dropped = store.prune(size * 6 // 10)
    assert 1000 < dropped < 4000
    assert store.info().num_bytes <= size * 6 // 10
    assert (tmp_path / "s.sqlite").stat().st_size <= size * 6 // 10, "the file shrinks too"
    assert None not in store.get("m", used_again)
    assert None not in store.get("m", many(4000, start=4000)[0])
    assert store.prune(0) == 8000 - dropped
    assert store.info().num_requests == 0


def test_writing_keeps_to_the_size_bound(tmp_path):
    store = ScoreStore(tmp_path / "s.sqlite", max_bytes=300_000)
    for start in range(0, 20_000, 1000):
        store.put("m", *many(1000, start))
    assert store.info().num_bytes <= 300_000
    assert 1000 <= store.info().num_requests < 10_000
