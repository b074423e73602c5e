"""A disk that fills up during a run: one sentence, exit code 2, and the same command goes on when there is room again.

    python -m benchmarks.full_disk [--task arc_easy] [--limit 40] [--data sample]

Needs root: a small tmpfs is mounted, and each trial leaves less free on it, so that the run meets the end at another
moment: opening the store, writing scores, a harness's logs, the report. After each the room is given back and the same
command must end with the reconcile.json of an undisturbed run. Prints a table; exit code 0 if every trial held.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

DISK_BYTES = 64 << 20
FREE_KIB = (0, 40, 120, 250, 500, 1000, 2000)


def run(disk: Path, words: list[str]) -> tuple[int, list[str]]:
    """The command with its store, its logs and its folder on the disk; exit code and what it said beside progress."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(disk / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "reconcile", *words, "--out", str(disk / "run")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, [line for line in done.stderr.splitlines() if not line.startswith("[")]


def clear(disk: Path) -> None:
    """An empty disk."""
    for path in disk.iterdir():
        subprocess.run(["rm", "-rf", str(path)], check=True)


def trial(disk: Path, words: list[str], free_kib: int, reference: bytes) -> tuple[str, bool]:
    """A line of the table and whether it held."""
    clear(disk)
    ballast = disk / "ballast"
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    ballast.write_bytes(bytes(free - (free_kib << 10)))
    code, said = run(disk, words)
    whole = (disk / "run" / "reconcile.json").exists()
    ballast.unlink()
    again, _ = run(disk, words)
    document = disk / "run" / "reconcile.json"
    same = document.is_file() and document.read_bytes() == reference
    fits = code in (0, 1) and whole
    held = same and again in (0, 1) and (fits or (code == 2 and len(said) == 1 and not whole))
    sentence = " ".join(said).removeprefix("reconcile: ").replace(str(disk), "DISK")[:150]
    end = "the run fits" if fits else sentence
    return f"| {free_kib} | {code} | {end} | {'yes' if same else 'NO'} | {'yes' if held else 'NO'} |", held


def main() -> int:
    """Run the trials and print their table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.full_disk", description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="arc_easy", choices=("arc_easy", "mmlu", "wikitext"))
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--data", default="sample")
    parser.add_argument("--model", default="smollm2-135m-instruct", metavar="REF")
    parser.add_argument("--free", type=int, nargs="+", default=FREE_KIB, metavar="KIB")
    options = parser.parse_args()
    words = [options.task, "--limit", str(options.limit), "--data", options.data, "--model", options.model]
    held = 0
    with tempfile.TemporaryDirectory(prefix="full-disk-") as folder:
        disk = Path(folder)
        size = f"size={DISK_BYTES}"
        if subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], check=False).returncode:
            raise SystemExit("full_disk: a tmpfs cannot be mounted here: run it as root")
        try:
            code, said = run(disk, words)
            if code not in (0, 1):
                raise SystemExit(f"full_disk: the undisturbed run ended with exit code {code}: {said}")
            reference = (disk / "run" / "reconcile.json").read_bytes()
            print("| free KiB | exit | what is said | resumed to the same bytes | held |")
            print("| ---: | ---: | --- | --- | --- |")
            for free_kib in options.free:
                line, good = trial(disk, words, free_kib, reference)
                held += good
                print(line, flush=True)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)
    print(f"\n{held} of {len(options.free)} full disks: one sentence, exit code 2, and the same command goes on")
    return 0 if held == len(options.free) else 1


if __name__ == "__main__":
    sys.exit(main())
