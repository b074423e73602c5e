"""Reading the small text files of a checkpoint, which are small: one of gigabytes is not what it says it is."""

from pathlib import Path

from llm.errors import InputError

MOST_BYTES = 256 << 20
"""Far above any real one: an index of a thousand shards has a few megabytes, a large tokenizer.json some thirty."""


def small_text(path: Path) -> str:
    """The file's text.

    Raises:
        InputError: it is too large, or it is not UTF-8.
        OSError: it cannot be read.
    """
    check_small(path)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error


def check_small(path: Path) -> None:
    """Raises InputError for a file that is too large to be read whole."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise InputError(f"{path}: holds {size} bytes, and no such file has more than {MOST_BYTES}; it is damaged")
