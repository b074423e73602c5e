"""`python -m reconcile cache`: what the store of scored requests holds, whether it is whole, and making it smaller.

Imports neither torch nor a harness.
"""

import os
import re
from pathlib import Path

from llm.errors import InputError
from llm.scoring.store import ScoreStore
from llm.scoring.store_check import faults_in

EXIT_WHOLE, EXIT_DAMAGED = 0, 1

_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def store_path() -> Path:
    """The user's own store, which every run with the cache on shares."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "harness-bridge" / "scores.sqlite"


def run_cache(action: str, *, store: Path | None, max_size: str | None) -> int:
    """Does `info`, `prune` or `verify` on a store and prints what it found; returns the exit code.

    Raises:
        InputError: not a size, a size for another action, or a file that is no store.
    """
    path = store if store is not None else store_path()
    if max_size is not None and action != "prune":
        raise InputError(f"--max-size belongs to cache prune, not to cache {action}: leave it out")
    num_bytes = None if max_size is None else parse_size(max_size)
    if not path.exists():
        if store is not None:
            raise InputError(f"there is no store at {path}: give the path of one, or leave out --store")
        print(f"{path} does not exist: nothing has been stored yet")
        return EXIT_WHOLE
    if action == "verify":
        return _verify(path)
    opened = ScoreStore(path)
    try:
        print(_pruned(opened, num_bytes) if action == "prune" else _described(opened))
    finally:
        opened.close()
    return EXIT_WHOLE


def parse_size(text: str) -> int:
    """Bytes in `500MB`, `2GiB` or a plain number of bytes."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s*([kmg]i?b)?", text.strip().lower())
    if match is None:
        raise InputError(f"--max-size is {text!r}: write a number of bytes, or one with KB, MB, GB, KiB, MiB or GiB")
    return int(float(match[1]) * _UNITS[match[2] or ""])


def _verify(path: Path) -> int:
    faults = faults_in(path)
    for fault in faults:
        print(fault)
    if faults:
        print(f"{path} is damaged: the next run will set it aside and begin a new one, which costs model time only")
        return EXIT_DAMAGED
    print(f"{path} is whole")
    return EXIT_WHOLE


def _described(store: ScoreStore) -> str:
    info = store.info()
    lines = [f"{info.path}: {_size(info.num_bytes)} of {_size(store.max_bytes)}, {info.num_requests} scored requests"]
    for namespace, count in info.by_namespace.items():
        fingerprint, *rest = namespace.split("|")
        lines.append(f"{count:>10}  model {fingerprint[:12]}, {', '.join(rest)}")
    return "\n".join(lines)


def _pruned(store: ScoreStore, num_bytes: int | None) -> str:
    dropped = store.prune(num_bytes)
    info = store.info()
    return f"{dropped} requests dropped; {info.num_requests} are left, {_size(info.num_bytes)} in {store.path}"


def _size(num_bytes: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes} bytes"
