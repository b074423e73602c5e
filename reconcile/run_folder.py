"""The folder a run leaves: filled beside its final place and put there when it is finished, never half."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llm.errors import InputError

DOCUMENT_NAME = "reconcile.json"


def check_place(folder: Path) -> None:
    """Whether a run may stand at `folder`: a new name, an empty folder, or an earlier run, which it will replace.

    Raises:
        InputError: there is something else, which would be lost.
    """
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


@contextmanager
def working_folder(folder: Path) -> Iterator[Path]:
    """`NAME.partial` beside `folder`, emptied; renamed to `folder` when the block ends, left as it is when it fails.

    An earlier run of the same name is replaced at that moment, not before.
    """
    check_place(folder)
    partial = folder.with_name(folder.name + ".partial")
    try:
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{partial} cannot be made ({error.strerror}): name another folder with --out") from error
    yield partial
    _put_in_place(partial, folder)


def _put_in_place(partial: Path, folder: Path) -> None:
    replaced = folder.with_name(folder.name + ".replaced")
    if replaced.exists():
        shutil.rmtree(replaced)
    if folder.exists():
        folder.rename(replaced)
    partial.rename(folder)
    if replaced.exists():
        shutil.rmtree(replaced)
