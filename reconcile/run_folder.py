"""The folder a run leaves: filled beside its final place and put there when it is finished, never half.

One run at a time fills it. The lock is on the folder itself and ends with the process, however that ends.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llm.errors import InputError

try:
    import fcntl
except ImportError:  # no such lock on this system: two runs into one folder are the user's to avoid
    fcntl = None  # type: ignore[assignment]

DOCUMENT_NAME = "reconcile.json"
LOG_NAME = "run.log"

_UNFINISHED = ".partial"


def check_place(folder: Path) -> None:
    """Whether a run may stand at `folder`: a new name, an empty folder, or an earlier run, which it will replace.

    Raises:
        InputError: there is something else, which would be lost; or another run is filling it at this moment.
    """
    if _unfinished_part(folder) is not None:
        raise InputError(f"{folder} would be an unfinished run by its name: name another with --out")
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InputError(f"{folder} is not a folder: name another with --out")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / DOCUMENT_NAME).is_file():
        raise InputError(
            f"{folder} holds something other than an earlier run: name a new or an empty folder with --out"
        )
    parent = folder.resolve().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise InputError(f"{parent} is a file: name a folder that can be made with --out")
    partial = _partial(folder)
    if partial.is_symlink() or (partial.exists() and not partial.is_dir()):
        raise InputError(f"{partial} is in the way of this run's unfinished work: move it, or name another --out")
    if partial.is_dir():
        _unlock(_lock(partial, folder))


def check_finished(path: Path) -> None:
    """Whether `path` may be read as a run, or as a part of one: what is not finished is never read as whole.

    Raises:
        InputError: it is a run that has not ended, or lies in one.
    """
    unfinished = _unfinished_part(path)
    if unfinished is not None:
        raise InputError(f"{unfinished} is an unfinished run: give the same command again, it goes on where that ended")


@contextmanager
def working_folder(folder: Path) -> Iterator[Path]:
    """`NAME.partial` beside `folder`, emptied but for the run.log of attempts that were cut off; renamed to `folder`
    when the block ends, left as it is when it fails, or taken away if it holds nothing.

    An earlier run of the same name is replaced at that moment, not before.

    Raises:
        InputError: the place cannot be used, or another run is filling it.
    """
    check_place(folder)
    _restore(folder)
    partial = _partial(folder)
    try:
        descriptor = _claim(partial, folder)
        _empty(partial)
    except OSError as error:
        raise InputError(f"{partial} cannot be made ({error.strerror}): name another folder with --out") from error
    try:
        yield partial
        _put_in_place(partial, folder)
    except BaseException:
        if not any(path.is_file() and path != partial / LOG_NAME for path in partial.rglob("*")):
            shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        _unlock(descriptor)


def _partial(folder: Path) -> Path:
    return folder.with_name(folder.name + _UNFINISHED)


def _unfinished_part(path: Path) -> Path | None:
    whole = path.resolve()
    return next((part for part in (whole, *whole.parents) if part.name.endswith(_UNFINISHED)), None)


def _replaced(folder: Path) -> Path:
    return folder.with_name(folder.name + ".replaced")


def _claim(partial: Path, folder: Path) -> int | None:
    """The lock on `partial`, made if need be: on the folder that has the name now, which another run may just have
    finished and renamed.
    """
    while True:
        partial.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = _lock(partial, folder)
            if descriptor is None or os.path.samestat(os.fstat(descriptor), partial.stat()):
                return descriptor
        except FileNotFoundError:
            continue
        _unlock(descriptor)


def _lock(partial: Path, folder: Path) -> int | None:
    """A descriptor that holds the lock until it is closed; None where the file system has no locks."""
    if fcntl is None:
        return None
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise InputError(
                f"another run is writing {folder} at this moment: wait for it, or name another folder with --out"
            ) from error
        return None
    return descriptor


def _unlock(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


def _empty(partial: Path) -> None:
    for path in partial.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOG_NAME:
            path.unlink()


def _restore(folder: Path) -> None:
    """The earlier run back in its place, where a run was killed between taking it away and standing there itself."""
    if _replaced(folder).is_dir() and not folder.exists():
        _replaced(folder).rename(folder)


def _put_in_place(partial: Path, folder: Path) -> None:
    replaced = _replaced(folder)
    if replaced.exists():
        shutil.rmtree(replaced)
    if folder.exists():
        folder.rename(replaced)
    partial.rename(folder)
    if replaced.exists():
        shutil.rmtree(replaced)
