"""Bad inputs: each is given to the command line, which must say one sentence, exit with 2, stay small, write nothing.

    python -m benchmarks.bad_inputs [--only WORD]

Every case spoils whole inputs (a checkpoint, a GGUF file, a data folder, two logs) in one way, or is an option that
cannot be met. It runs through `reconcile.cli.main` with the real readers, in a folder whose files are listed before and
after. Prints a table; exit code 0 if every case held.
"""

import argparse
import contextlib
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bad_cases import CASES, LOGS, Case, Place
from benchmarks.good_inputs import check_models, make_checkpoint, make_data, make_gguf, make_run

REPOSITORY = Path(__file__).resolve().parents[1]
MOST_BYTES = 2 << 30


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the command did with one case. `said` are the lines on standard error that are not progress."""

    code: int
    said: tuple[str, ...]
    printed: str
    written: tuple[str, ...]
    peak_bytes: int
    seconds: float

    @property
    def faults(self) -> list[str]:
        """What it should not have done."""
        faults = [] if self.code == 2 else [f"exit code {self.code}"]
        if len(self.said) != 1 or not self.said[0].startswith("reconcile: "):
            faults.append(f"{len(self.said)} lines on standard error")
        if self.printed:
            faults.append("standard output")
        if self.written:
            faults.append(f"wrote {', '.join(self.written[:3])}")
        if self.peak_bytes >= MOST_BYTES:
            faults.append(f"peak {self.peak_bytes >> 20} MiB")
        return faults


class Bench:
    """The whole inputs, made once, and a fresh copy of them for each case."""

    def __init__(self, root: Path, *, with_logs: bool) -> None:
        self.root = root
        self.whole = root / "whole"
        make_checkpoint(self.whole / "model")
        make_gguf(self.whole / "model.gguf")
        check_models(self.whole / "model", self.whole / "model.gguf")
        make_data(self.whole / "data")
        if with_logs:
            with surroundings(root / "making"):
                make_run(self.whole / "run", self.whole / "model")

    def run(self, case: Case, main: Callable[[list[str]], int]) -> Outcome:
        """Spoil a copy, give it to `main`, and look at what happened."""
        folder = self.root / "case"
        shutil.copytree(self.whole, folder / "in", symlinks=True)
        place = Place(folder=folder / "in")
        arguments = case.make(place)
        try:
            with surroundings(folder):
                before = files_below(folder)
                reset_peak()
                began = time.monotonic()
                code, printed, said = captured(folder.parent, lambda: main(arguments))
                return Outcome(
                    code=code,
                    said=tuple(line for line in said.splitlines() if not line.startswith("[")),
                    printed=printed,
                    written=tuple(sorted(files_below(folder) - before)),
                    peak_bytes=peak_bytes(),
                    seconds=time.monotonic() - began,
                )
        finally:
            shutil.rmtree(folder)


@contextlib.contextmanager
def surroundings(folder: Path) -> Iterator[None]:
    """Home, cache, temporary files and the working directory below `folder`."""
    names = {"HOME": "home", "XDG_CACHE_HOME": "cache", "TMPDIR": "tmp"}
    kept = {name: os.environ.get(name) for name in (*names, "PWD")}
    here = Path.cwd()
    for name, inner in names.items():
        (folder / inner).mkdir(parents=True, exist_ok=True)
        os.environ[name] = str(folder / inner)
    (folder / "here").mkdir()
    os.chdir(folder / "here")
    os.environ["PWD"] = str(folder / "here")
    tempfile.tempdir = None
    try:
        yield
    finally:
        os.chdir(here)
        tempfile.tempdir = None
        for name, value in kept.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def captured(folder: Path, call: Callable[[], int]) -> tuple[int, str, str]:
    """The call's result and what the process wrote to its two streams, other libraries' own writing included."""
    texts = []
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context((folder / name).open("w+")) for name in ("stdout", "stderr")]
        for stream, file in zip((sys.stdout, sys.stderr), files, strict=True):
            stream.flush()
            kept = os.dup(stream.fileno())
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, stream.fileno())
            stack.callback(stream.flush)
            os.dup2(file.fileno(), stream.fileno())
        code = call()
        sys.stdout.flush()
        sys.stderr.flush()
        for file in files:
            file.seek(0)
            texts.append(file.read())
    return code, texts[0], texts[1]


def files_below(folder: Path) -> set[str]:
    """Every file and folder, the temporary ones included."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def reset_peak() -> None:
    """Let the kernel count the peak from here on, where it can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Peak memory of this process since `reset_peak`; since its start where the kernel does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def row(number: int, case: Case, outcome: Outcome, root: Path) -> str:
    """A line of the table; paths are shown below the bench's own folder."""
    sentence = " ".join(outcome.said).removeprefix("reconcile: ").replace(f"{root}/case/in/", "")
    sentence = sentence.replace(str(root), "…").replace(f"{REPOSITORY}/", "").replace("|", "\\|")
    sentence = sentence if len(sentence) <= 160 else f"{sentence[:157]}…"
    fault = "; ".join(outcome.faults)
    return f"| {number} | {case.name} | {sentence}{f' **{fault}**' if fault else ''} | {outcome.peak_bytes >> 20} |"


def main() -> int:
    """Run every case and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bad_inputs", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="WORD", help="cases whose name holds this")
    options = parser.parse_args()
    from reconcile.cli import main as command

    held, chosen = 0, [case for case in CASES if options.only in case.name]
    with tempfile.TemporaryDirectory(prefix="bad-inputs-") as folder:
        bench = Bench(Path(folder), with_logs=any(case in LOGS for case in chosen))
        print("| | bad input | what is said | peak MiB |\n| ---: | --- | --- | ---: |")
        for number, case in enumerate(chosen, start=1):
            outcome = bench.run(case, command)
            held += not outcome.faults
            print(row(number, case, outcome, Path(folder)), flush=True)
    print(f"\n{held} of {len(chosen)} bad inputs: one sentence, exit code 2, nothing written, under 2 GiB")
    return 0 if held == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
