"""A name for a local dataset folder that the cache of `datasets` cannot mistake for another.

`datasets` (seen with 5.2) caches a local folder under its last name and its card alone: two folders named `ai2_arc`
with one card share one entry, and an edited file keeps its old rows, so that a harness would silently be given other
items than those asked for. A link whose name carries the content's fingerprint is an entry of its own.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from llm.errors import InputError


def fingerprinted_link(folder: Path, fingerprint: str) -> Path:
    """A link to `folder` called NAME-FINGERPRINT, made once below the user's cache folder (else the temporary one).

    Raises:
        InputError: neither place can be written.
    """
    place = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    failure: OSError | None = None
    for root in _roots():
        link = root / "harness-bridge" / "data" / place / f"{folder.name}-{fingerprint[:16]}"
        try:
            return _linked(link, folder)
        except OSError as error:
            failure = error
    raise InputError(f"cannot link {folder} for the datasets cache ({failure}): make ~/.cache writable")


def _roots() -> Iterator[Path]:
    yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    yield Path(tempfile.gettempdir()) / f"user-{os.getuid() if hasattr(os, 'getuid') else os.getlogin()}"


def _linked(link: Path, folder: Path) -> Path:
    if link.is_symlink() and Path(os.readlink(link)) == folder:
        return link
    link.parent.mkdir(parents=True, exist_ok=True)
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(folder, target_is_directory=True)
    fresh.replace(link)  # atomic, so that two runs starting together both find a whole link
    return link
