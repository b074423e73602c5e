"""Kills `python -m reconcile` at random moments and runs it again: the same bytes, at most one batch computed twice.

    python -m benchmarks.kill_test [--kills 20] [--limit 120] [--data ../shared/data] [--model REF]

A reference run comes first. Every trial then begins with an empty store: the command is killed (SIGKILL) once at a
random moment of its work, counted in processor time, and the same command runs to its end. Its reconcile.json must be
the reference's byte for byte. Requests computed over both attempts, less the distinct ones in the store, were computed
twice: at most one batch. Prints a table; exit code 0 if every trial held.
"""

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from llm.scoring.store import ScoreStore
from reconcile.run_log import Counts, read_attempts

WORK = "run"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One kill and what the same command did afterwards. `stage` is the last line of the killed attempt's run.log."""

    killed_after: float
    stage: str
    num_stored: int
    num_computed_after: int
    num_twice: int
    largest_batch: int
    same_bytes: bool
    exit_code: int

    @property
    def holds(self) -> bool:
        """Whether the rerun is as if nothing had happened."""
        return self.same_bytes and self.exit_code in (0, 1) and self.num_twice <= self.largest_batch


def command(options: argparse.Namespace) -> list[str]:
    """The command line under test, the same at every attempt."""
    words = [sys.executable, "-m", "reconcile", options.task, "--data", options.data, "--model", options.model]
    return [*words, "--limit", str(options.limit), "--out", str(options.folder / WORK)]


def start(options: argparse.Namespace, words: list[str]) -> subprocess.Popen[bytes]:
    """The command in a session of its own, with a store below the test's folder."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(options.folder / "cache")}
    return subprocess.Popen(
        words, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def kill_after(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Kill the process and all it started once it has computed for so long; whether it was still running."""
    while process.poll() is None:
        if cpu_seconds(process.pid) >= seconds:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.01)
    return False


def cpu_seconds(pid: int) -> float:
    """Processor time of a process: what else the machine does moves no kill. Wall time where the kernel tells none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return time.monotonic() - _BEGAN
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


_BEGAN = time.monotonic()


def trial(options: argparse.Namespace, reference: bytes, moment: float) -> Trial:
    """An empty store, a kill after `moment` seconds, and a run to the end."""
    clear(options.folder)
    words = command(options)
    killed = kill_after(start(options, words), moment)
    document = options.folder / WORK / "reconcile.json"
    ended = document.is_file()  # its log is replaced by the rerun's
    stage = last_stage(options.folder / f"{WORK}.partial" / "run.log") if killed and not ended else "had ended"
    before = num_stored(options.folder) if ended else 0
    code = start(options, words).wait()
    attempts = read_attempts(options.folder / WORK / "run.log")
    stored = num_stored(options.folder)
    return Trial(
        killed_after=moment,
        stage=stage,
        num_stored=attempts[-1].found if attempts else 0,
        num_computed_after=attempts[-1].computed if attempts else 0,
        num_twice=before + sum(one.computed for one in attempts) - stored,
        largest_batch=max((one.largest for one in attempts), default=0),
        same_bytes=document.is_file() and document.read_bytes() == reference,
        exit_code=code,
    )


def clear(folder: Path) -> None:
    """As before the first run."""
    for path in folder.iterdir():
        shutil.rmtree(path)


def last_stage(log: Path) -> str:
    """What the killed attempt wrote last, without the time of day."""
    if not log.is_file():
        return "loading"
    lines = log.read_text(encoding="utf-8").splitlines()
    return lines[-1].partition(" ")[2][:40] if lines else "loading"


def num_stored(folder: Path) -> int:
    """Distinct requests in the test's store."""
    store = ScoreStore(folder / "cache" / "harness-bridge" / "scores.sqlite")
    count = store.info().num_requests
    store.close()
    return count


def reference_run(options: argparse.Namespace) -> tuple[bytes, float, Counts]:
    """reconcile.json of a run that nobody disturbs, its processor seconds, its counts."""
    clear(options.folder)
    code = start(options, command(options)).wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    document = options.folder / WORK / "reconcile.json"
    if code not in (0, 1) or not document.is_file():
        raise SystemExit(f"kill_test: the reference run ended with exit code {code}")
    return document.read_bytes(), used.ru_utime + used.ru_stime, read_attempts(options.folder / WORK / "run.log")[-1]


HEADER = (
    "| kill | after CPU s | last line before it | found by the rerun | computed by it | computed twice | largest batch "
    "| same bytes |\n| ---: | ---: | --- | ---: | ---: | ---: | ---: | --- |"
)


def row(number: int, one: Trial) -> str:
    """A line of the table."""
    return (
        f"| {number} | {one.killed_after:.1f} | {one.stage} | {one.num_stored} | {one.num_computed_after} "
        f"| {one.num_twice} | {one.largest_batch} | {'yes' if one.same_bytes else f'NO (exit {one.exit_code})'} |"
    )


def main() -> int:
    """Run the test and print its table as it grows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kill_test", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--task", default="arc_easy", choices=("arc_easy", "mmlu", "wikitext"))
    parser.add_argument("--limit", type=int, default=120)
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--model", default="smollm2-135m-instruct", metavar="REF")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="kill-test-") as folder:
        options.folder = Path(folder)
        reference, seconds, counts = reference_run(options)
        print(f"reference: {seconds:.1f} CPU s, {counts.computed} requests, {len(reference)} bytes of reconcile.json\n")
        print(HEADER, flush=True)
        held = 0
        for number in range(1, options.kills + 1):
            one = trial(options, reference, rng.uniform(0.05, 0.95) * seconds)
            held += one.holds
            print(row(number, one), flush=True)
    print(f"\n{held} of {options.kills} reruns gave the reference's bytes and computed at most one batch twice")
    return 0 if held == options.kills else 1


if __name__ == "__main__":
    sys.exit(main())
