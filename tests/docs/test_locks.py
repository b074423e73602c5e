"""The locks agree: every hashed package is locked at the same version, and the hashes are whole."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def lines(name: str) -> list[str]:
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_hashes_are_of_the_locked_versions() -> None:
    locked = set(lines("requirements.lock"))
    hashed = lines("requirements-hashes.lock")
    assert len(hashed) > len(locked) / 2
    for line in hashed:
        assert re.fullmatch(r"[\w.-]+==\S+ --hash=sha256:[0-9a-f]{64}", line), line
        assert line.split(" ")[0] in locked


def test_every_lock_names_one_version() -> None:
    for name in ("requirements.lock", "requirements-model.lock"):
        assert all(re.fullmatch(r"[\w.-]+==\S+", line) for line in lines(name))
    assert any(line.startswith("torch==") for line in lines("requirements.lock"))
