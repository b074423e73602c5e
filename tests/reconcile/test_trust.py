"""Runs that are killed, interrupted, doubled, cut off from the network, short of disk, or given secrets to keep."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from llm.errors import InputError
from reconcile import cache
from reconcile.cli import main
from reconcile.run_folder import check_place, working_folder
from reconcile.run_log import Counts, RunLog, read_attempts

pytest.importorskip("lm_eval")
pytest.importorskip("inspect_ai")

REPOSITORY = Path(__file__).resolve().parents[2]


def command(checkpoint: Path, out: str = "out", *, limit: int = 6) -> list[str]:
    return ["arc_easy", "--model", str(checkpoint), "--limit", str(limit), "--out", out]


def start(words: list[str], folder: Path, code: str | None = None) -> subprocess.Popen[str]:
    """`python -m reconcile` (or `code` with the same arguments) in `folder`, with a store of its own below it."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    place = folder / "here"
    place.mkdir(exist_ok=True)
    begin = ["-m", "reconcile"] if code is None else ["-c", code]
    return subprocess.Popen(
        [sys.executable, *begin, *words],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs inherit it ignored
    )


def document(folder: Path) -> bytes:
    """reconcile.json of the run in `folder`, without its name: the settings say where in the cache the data lie."""
    return (folder / "here" / "out" / "reconcile.json").read_bytes().replace(str(folder).encode(), b"FOLDER")


def questions(folder: Path, texts: Sequence[str]) -> Path:
    """ARC-Easy of these questions in `folder`."""
    data = folder / "allenai" / "ai2_arc"
    data.mkdir(parents=True)
    rows = [
        {"id": str(n), "question": f"{text}?", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "A"}
        for n, text in enumerate(texts)
    ]
    (data / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = "".join(f"  - split: {split}\n    path: rows.jsonl\n" for split in ("test", "train", "validation"))
    (data / "README.md").write_text(f"---\nconfigs:\n- config_name: ARC-Easy\n  data_files:\n{files}---\n")
    return folder


def wait_for(what: Any, process: subprocess.Popen[str], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def reference(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """reconcile.json of a run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("reference")
    process = start(command(tiny_checkpoint), folder)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return document(folder)


# killed and interrupted


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(
    tiny_checkpoint: Path, reference: bytes, tmp_path: Path
) -> None:
    first = start(command(tiny_checkpoint), tmp_path)
    log = tmp_path / "here" / "out.partial" / "run.log"
    wait_for(lambda: log.is_file() and "stored" in log.read_text(), first)
    first.kill()
    first.wait()
    assert not (tmp_path / "here" / "out").exists()

    second = start(command(tiny_checkpoint), tmp_path)
    _, said = second.communicate(timeout=300)
    assert second.returncode == 0, said
    out = tmp_path / "here" / "out"
    assert document(tmp_path) == reference
    assert not out.with_name("out.partial").exists()
    killed, resumed = read_attempts(out / "run.log")
    assert resumed.found >= killed.stored > 0
    assert killed.lost <= killed.largest
    assert "finished in attempt 2" in (out / "run.log").read_text()


def interrupted(tiny_checkpoint: Path, folder: Path) -> tuple[int, str]:
    """(exit code, stderr) of a run that gets SIGINT once its first scores are stored."""
    folder.mkdir()
    process = start(command(tiny_checkpoint, limit=24), folder)
    log = folder / "here" / "out.partial" / "run.log"
    wait_for(lambda: log.is_file() and "stored" in log.read_text(), process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    return process.returncode, said


def test_an_interrupted_run_says_what_is_kept(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Inspect may take a lone Ctrl-C for itself as it starts or ends, and the run then completes: it is tried again."""
    tries = (interrupted(tiny_checkpoint, tmp_path / str(number)) for number in range(4))
    code, said = next(((code, said) for code, said in tries if code), (0, "every run completed"))
    assert code == 130, said
    message = "reconcile: interrupted: what was scored is stored, and the same command goes on from there"
    assert message in [line.strip() for line in said.splitlines()]
    assert "Traceback" not in said


# two at once


def test_two_runs_at_once_on_one_store(tiny_checkpoint: Path, reference: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "cache").mkdir()
    for name in "ab":
        (tmp_path / name / "cache").symlink_to(tmp_path / "cache")
    both = [start(command(tiny_checkpoint), tmp_path / name) for name in "ab"]
    for process, name in zip(both, "ab", strict=True):
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
        assert document(tmp_path / name) == reference


def test_two_runs_at_once_in_one_folder(
    tiny_checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with working_folder(out) as partial:
        (partial / "half").write_text("mine")
        assert main(command(tiny_checkpoint, str(out))) == 2
        (sentence,) = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("[")]
        assert sentence == (
            f"reconcile: another run is writing {out} at this moment: wait for it, or name another folder with --out"
        )
        assert (partial / "half").read_text() == "mine"
        (partial / "reconcile.json").write_text("{}")
    assert (out / "half").read_text() == "mine"
    check_place(out)


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from reconcile.run_folder import working_folder\n"
        "with working_folder(Path(sys.argv[1])) as partial:\n"
        "    (partial / 'held').write_text('')\n"
        "    time.sleep(60)\n"
    )
    holder = start([str(tmp_path / "out")], tmp_path, code)
    wait_for(lambda: (tmp_path / "out.partial" / "held").exists(), holder)
    with pytest.raises(InputError, match="another run is writing"):
        check_place(tmp_path / "out")
    holder.kill()
    holder.wait()
    with working_folder(tmp_path / "out") as partial:
        assert list(partial.iterdir()) == []


def test_a_run_killed_while_it_replaced_another_leaves_the_other(tmp_path: Path) -> None:
    (tmp_path / "out.replaced").mkdir()
    (tmp_path / "out.replaced" / "reconcile.json").write_text("earlier")
    with contextlib.suppress(RuntimeError), working_folder(tmp_path / "out") as partial:
        (partial / "half").write_text("")
        raise RuntimeError("halfway")
    assert (tmp_path / "out" / "reconcile.json").read_text() == "earlier"
    with working_folder(tmp_path / "out") as partial:
        (partial / "reconcile.json").write_text("later")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert (tmp_path / "out" / "reconcile.json").read_text() == "later"


def test_no_run_takes_the_name_of_an_unfinished_one(tmp_path: Path) -> None:
    for folder in (tmp_path / "out.partial", tmp_path / "out.partial" / "run"):
        with pytest.raises(InputError, match=r"would be an unfinished run by its name: name another with --out"):
            check_place(folder)


def test_a_block_that_leaves_nothing_leaves_no_folder(tmp_path: Path) -> None:
    def run() -> None:
        with working_folder(tmp_path / "deep" / "out") as partial:
            RunLog().open(partial, "python -m reconcile")
            raise InputError("bad")

    with pytest.raises(InputError, match="bad"):
        run()
    assert list((tmp_path / "deep").iterdir()) == []


# run.log


def test_the_log_counts_by_attempt(tmp_path: Path) -> None:
    first = RunLog()
    first.count("found", 3)  # before there is a folder
    first.open(tmp_path, "python -m reconcile arc_easy")
    first.count("computed", 5)
    first.count("stored", 5)
    first.count("computed", 4)
    with (tmp_path / "run.log").open("a") as file:
        file.write("2024-01-01T00:00:00.000Z sto")  # cut off by a kill
        file.write("\n")
    second = RunLog()
    second.open(tmp_path, "python -m reconcile arc_easy")
    second.count("found", 8)
    second.count("computed", 4)
    second.count("stored", 4)
    second.finish()
    assert read_attempts(tmp_path / "run.log") == [
        Counts(found=3, computed=9, stored=5, largest=5),
        Counts(found=8, computed=4, stored=4, largest=4),
    ]
    assert (
        "finished in attempt 2: 8 found in the store, 4 computed, 4 of them for the second time"
        in (tmp_path / "run.log").read_text().splitlines()[-1]
    )


# the network


NO_NETWORK = """
import sys
from reconcile.cli import main

def refuse(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        family = getattr(arguments[0], "family", None)
        if family is None or family.name in ("AF_INET", "AF_INET6"):
            raise ConnectionRefusedError(f"no network here: {event} {arguments[1:]}")

sys.addaudithook(refuse)
sys.exit(main())
"""


def test_the_main_job_needs_no_network(tiny_checkpoint: Path, reference: bytes, tmp_path: Path) -> None:
    """Every connection and every name look-up is refused from the first import on; the caches are empty."""
    (tmp_path / "home").mkdir()
    process = start(
        command(tiny_checkpoint), tmp_path, f"import os\nos.environ['HOME'] = {str(tmp_path / 'home')!r}\n" + NO_NETWORK
    )
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert document(tmp_path) == reference


def test_the_refusal_refuses() -> None:
    code = NO_NETWORK.replace("sys.exit(main())", "import socket; socket.create_connection(('127.0.0.1', 9))")
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True)
    assert "no network here" in done.stderr


# a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MiB; skipped where none may be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small disk can be mounted by root alone: benchmarks.full_disk says more")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_is_one_sentence_and_the_run_goes_on(
    small_disk: Path,
    tiny_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk / "cache"))
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2900 << 10))
    out = small_disk / "out"
    assert main(command(tiny_checkpoint, str(out))) == 2
    (sentence,) = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("[")]
    assert "the disk is full" in sentence
    assert "same command" in sentence
    assert not out.exists()
    ballast.unlink()
    assert main(command(tiny_checkpoint, str(out))) == 0
    assert (out / "reconcile.json").is_file()


# secrets


SECRETS = {
    "HF_TOKEN": "hf_c4nary0aaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "OPENAI_API_KEY": "sk-c4nary1aaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "AWS_SECRET_ACCESS_KEY": "c4nary2aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
}


def contents(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file, and every part of an archive, unpacked."""
    import gzip

    from reconcile.log_files import _inflated, _unzstd

    for path in folder.rglob("*"):
        if path.is_file():
            yield path, path.read_bytes()
            if path.suffix == ".gz":
                yield path, gzip.decompress(path.read_bytes())
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    for part in archive.infolist():
                        unpack = _inflated if part.compress_type == zipfile.ZIP_DEFLATED else _unzstd
                        yield path / part.filename, b"".join(unpack(path, part))


def test_secrets_of_the_environment_stay_there(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(command(tiny_checkpoint, str(tmp_path / "out"), limit=2)) == 0
    said = capfd.readouterr()
    files = dict(contents(tmp_path))
    assert any("header.json" in str(path) for path in files)
    for value in SECRETS.values():
        assert value not in said.out + said.err
        for path, data in files.items():
            assert value.encode() not in data, path


def test_a_fault_report_keeps_what_was_given_as_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(options: object) -> int:
        raise RuntimeError("refused with api_key=sk-c4nary3")

    monkeypatch.setattr("reconcile.ledger_run.run_task", fail)
    words = [
        "arc_easy",
        "--lm-eval-model",
        "local-completions",
        "--lm-eval-model-args",
        "base_url=x,api_key=sk-c4nary3",
    ]
    monkeypatch.setattr(sys, "argv", ["reconcile", *words])
    assert main(words) == 3
    said = capsys.readouterr().err
    report = Path(said.strip().rsplit(" ", 1)[-1])
    text = report.read_text()
    report.unlink()
    assert "RuntimeError" in text
    assert "sk-c4nary3" not in text + said


# an engine that fails


class Failing:
    """An engine that cannot score requests of one question."""

    def __init__(self, engine: Any, told: Callable[[Sequence[int]], str], error: Exception) -> None:
        self.engine, self.told, self.error = engine, told, error

    def score(self, requests: Sequence[Any], **further: Any) -> Any:
        if any("ZZZ" in self.told(request.context_ids) for request in requests):
            raise self.error
        return self.engine.score(requests, **further)


@pytest.mark.parametrize(
    ("side", "error", "code"),
    [
        (0, RuntimeError("the engine broke"), 3),
        (1, RuntimeError("the engine broke"), 3),
        (1, InputError("the engine broke"), 2),
        (1, OSError(28, "No space left on device"), 2),
    ],
)
def test_an_engine_that_fails_ends_either_side_alike(
    side: int,
    error: Exception,
    code: int,
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A fault of ours is exit 3 with its traceback in a file, and leaves no folder that could pass for a run."""
    import llm.scoring.plain
    from llm.models import load_tokenizer

    tokenizer, make, made = load_tokenizer(str(tiny_checkpoint)), llm.scoring.plain.make_scorer, []

    def make_scorer(*args: Any, **kwargs: Any) -> Any:
        made.append(make(*args, **kwargs))
        return Failing(made[-1], tokenizer.decode, error) if len(made) == side + 1 else made[-1]

    monkeypatch.setattr(llm.scoring.plain, "make_scorer", make_scorer)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data, out = questions(tmp_path / "data", ["what is it", "ZZZ", "who is it"]), tmp_path / "out"
    words = ["arc_easy", "--model", str(tiny_checkpoint), "--data", str(data), "--out", str(out), "--no-cache"]
    assert main(words) == code
    said = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("[")][-1]
    assert not out.exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == ["out.partial"]
    if code == 3:
        report = Path(said.rsplit(" ", 1)[-1])
        assert "raise self.error" in report.read_text()
        report.unlink()
        assert "the engine broke" in said
        assert side == 0 or "(sample arc_easy/1)" in said


# logits that are no numbers


def test_logits_that_are_no_numbers_are_told_of_their_items(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An embedding that goes bad after it was loaded: items that hold its token are concerned, and no others, though
    all are computed together.
    """
    import torch

    import llm.models
    from llm.models import load_model

    def load(*args: Any, **kwargs: Any) -> Any:
        model, tokenizer = load_model(*args, **kwargs)
        (letter,) = tokenizer("Z", add_special_tokens=False).input_ids
        model.lm_head.weight = torch.nn.Parameter(model.embed_tokens.weight.detach().clone())
        with torch.no_grad():
            model.embed_tokens.weight[letter] = float("nan")
        return model, tokenizer

    monkeypatch.setattr(llm.models, "load_model", load, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data, out = questions(tmp_path / "data", ["what is it", "ZZZ", "who is it", "Z", "why"]), tmp_path / "out"
    words = ["arc_easy", "--model", str(tiny_checkpoint), "--data", str(data), "--out", str(out)]
    code = main(words)
    said = capfd.readouterr()
    assert code in (0, 1), said.err
    found = json.loads((out / "reconcile.json").read_text())
    assert found["num_items"]["common"] == 5
    told = [note for note in found["notes"] if "a score that is not a number" in note]
    assert [note.partition(" hold")[0] for note in told] == ["lm-eval: 2 of 5 items", "Inspect: 2 of 5 items"]
    assert told[0].endswith("(samples arc_easy:1, arc_easy:3)")
    assert "lm-eval: 2 of 5 items hold a score that is not a number" in (out / "report.md").read_text()


# the store's command


def test_the_cache_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from llm.scoring.requests import ScoreRequest, TokenScores
    from llm.scoring.store import ScoreStore

    def said(*words: str) -> tuple[int, str]:
        code = main(["cache", *words])
        found = capsys.readouterr()
        return code, (found.out + found.err).strip()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = cache.store_path()
    assert said("info") == (0, f"{path} does not exist: nothing has been stored yet")
    assert not path.exists()
    store = ScoreStore(path)
    asked = [ScoreRequest(context_ids=(n + 1,), continuation_ids=(1,)) for n in range(3000)]
    store.put("abc|torch.float32|float32|engine 1", asked, [TokenScores(logprobs=(-1.5,), is_greedy=True)] * 3000)
    store.close()
    assert said("verify") == (0, f"{path} is whole")
    code, text = said("info")
    assert code == 0
    assert "3000 scored requests" in text
    assert "model abc, torch.float32, float32, engine 1" in text
    code, text = said("prune", "--max-size", "64KiB")
    assert code == 0
    assert "requests dropped" in text
    assert 0 < path.stat().st_size <= 64 << 10
    assert said("prune", "--max-size", "plenty")[0] == 2
    assert said("info", "--max-size", "1GB")[0] == 2
    assert said("info", "--store", str(tmp_path / "none"))[0] == 2
    data = bytearray(path.read_bytes())
    data[-3000:] = os.urandom(3000)
    path.write_bytes(data)
    code, text = said("verify")
    assert code == 1
    assert "is damaged: the next run will set it aside" in text
    assert path.read_bytes() == data, "verify changes nothing"


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("500MB", 500_000_000), ("2 GiB", 2 << 30), ("1.5kib", 1536), ("12b", None), ("-1", None)],
)
def test_sizes(text: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(InputError, match="write a number of bytes"):
            cache.parse_size(text)
    else:
        assert cache.parse_size(text) == size


def test_a_store_that_is_read_while_another_writes_it_is_whole(tmp_path: Path) -> None:
    from llm.scoring.requests import ScoreRequest, TokenScores
    from llm.scoring.store import ScoreStore
    from llm.scoring.store_check import faults_in

    path = tmp_path / "s.sqlite"
    ScoreStore(path).close()
    ended = threading.Event()

    def write() -> None:
        store = ScoreStore(path)
        for first in range(0, 20_000, 500):
            asked = [ScoreRequest(context_ids=(n + 1,), continuation_ids=(1,)) for n in range(first, first + 500)]
            store.put("m", asked, [TokenScores(logprobs=(-1.5,), is_greedy=True)] * 500)
        store.close()
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not ended.is_set():
        assert faults_in(path) == []
    writer.join()
