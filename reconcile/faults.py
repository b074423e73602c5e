"""How a command ends badly: one line for the user, and for a fault of our own a file with the traceback.

Nothing that was given as a key or a token is written.
"""

import errno
import shlex
import sys
import tempfile
import traceback
from pathlib import Path

from reconcile.engines import without_secrets

_MOST_SAID = 2000
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def one_line(error: Exception) -> str:
    """The sentence as one line of bounded length: it may quote what a file holds, which may be anything."""
    said = " ".join(str(error).split())
    return said if len(said) <= _MOST_SAID else f"{said[:_MOST_SAID]}…"


def full_disk(error: Exception) -> str | None:
    """What to say where a write failed because there is no room; None for any other fault."""
    if not isinstance(error, OSError) or error.errno not in _FULL:
        return None
    place = f" at {error.filename}" if error.filename else ""
    return f"the disk is full{place}: free some space and give the same command again, it goes on from what is stored"


def internal_fault(error: Exception) -> str:
    """Writes the traceback being handled to a new file; what to say of it, the file's name last."""
    said = f"internal fault, {type(error).__name__}: {without_secrets(one_line(error))}"
    report = f"arguments: {shlex.join(sys.argv[1:])}\npython: {sys.version}\n\n{traceback.format_exc()}"
    try:
        with tempfile.NamedTemporaryFile("w", prefix="reconcile-fault-", suffix=".txt", delete=False) as file:
            file.write(without_secrets(report))
    except OSError as failed:
        return f"{said}; its report cannot be written ({failed.strerror})"
    return f"{said}; its report is {Path(file.name)}"
