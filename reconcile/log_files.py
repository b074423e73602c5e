"""Opening logs that anyone may have written: bounded memory, and one sentence for whatever is wrong with them.

Nothing here knows a harness's format; nothing is ever unpacked to disk, so a name inside an archive leads nowhere.
"""

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llm.errors import InputError

MOST_DOCUMENT_BYTES = 256 << 20
"""Of a file that is one JSON document, and of an archive's part when unpacked: both are read whole."""
MOST_LINE_CHARS = 64 << 20
"""Of one line of a JSON-lines file: the file may be of any size, it is read line by line."""
MOST_DEFLATED = 1032
"""What deflate can shrink a text by, at most."""
_ZSTD = 93
_PIECE, _SMALL = 1 << 20, 1 << 10


@contextmanager
def readable(path: Path, what: str) -> Iterator[None]:
    """Turns what a log's shape makes a reader raise into an InputError that names the log.

    Raises:
        InputError: also for a log nested so deeply, or so large, that reading it cannot be finished.
    """
    try:
        yield
    except InputError:
        raise
    except RecursionError as error:
        raise InputError(f"{path} is nested too deeply to be {what}") from error
    except MemoryError as error:
        raise InputError(f"{path} needs more memory than there is to be read as {what}") from error
    except UnicodeError as error:
        raise InputError(f"{path} is not {what}: it holds bytes that are not UTF-8 text") from error
    except OSError as error:
        raise InputError(f"{error.filename or path} cannot be read ({error.strerror or error})") from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"{path} is not {what}, or is damaged ({type(error).__name__}: {reason})") from error


def check_document(path: Path) -> None:
    """Raises InputError for a file that is too large to be read whole."""
    size = path.stat().st_size
    if size > MOST_DOCUMENT_BYTES:
        raise InputError(f"{path} holds {size} bytes and a document of at most {MOST_DOCUMENT_BYTES} is read whole")


def load_document(path: Path) -> Any:
    """The value of a JSON document; InputError if it is too large, cut short or damaged."""
    check_document(path)
    return parse_document(path, path.read_text(encoding="utf-8"))


def parse_document(path: Path, text: str) -> Any:
    """The value of a document's text, NaN and Infinity included."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is damaged or unfinished: it is not complete JSON ({error})") from error


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file from 1 on; InputError for one that no log has."""
    with path.open(encoding="utf-8") as file:
        number = 0
        while line := file.readline(MOST_LINE_CHARS + 1):
            number += 1
            if len(line) > MOST_LINE_CHARS:
                raise InputError(f"{path}:{number} has more than {MOST_LINE_CHARS} characters: no logged sample has")
            yield number, line


def check_archive(path: Path) -> None:
    """Raises InputError for a zip file whose parts would unpack to more than is read, whatever they say themselves."""
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise InputError(f"{path} is not a log that Inspect can read, or was cut short ({error})") from error
    with archive:
        for part in archive.infolist():
            if part.file_size > MOST_DOCUMENT_BYTES or _unpacks_to_more(path, part):
                raise InputError(
                    f"{path} holds a part, {part.filename[:80]!r}, that unpacks to more than {MOST_DOCUMENT_BYTES} "
                    "bytes: no log has such a part"
                )


def _unpacks_to_more(path: Path, part: zipfile.ZipInfo) -> bool:
    """Whether a part is larger than it says: only one that could be is unpacked, a little at a time, to see."""
    if part.compress_type == zipfile.ZIP_DEFLATED:
        could = part.compress_size * MOST_DEFLATED > MOST_DOCUMENT_BYTES
        return could and _size(_inflated(path, part)) > MOST_DOCUMENT_BYTES
    return part.compress_type == _ZSTD and _size(_unzstd(path, part)) > MOST_DOCUMENT_BYTES


def _size(pieces: Iterator[bytes]) -> int:
    """Bytes in all the pieces, counted until the bound is passed."""
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > MOST_DOCUMENT_BYTES:
            break
    return size


def _packed(path: Path, part: zipfile.ZipInfo) -> Iterator[bytes]:
    """A part's bytes as they stand in the file, after its local header."""
    with path.open("rb") as file:
        file.seek(part.header_offset + 26)
        file.seek(part.header_offset + 30 + sum(struct.unpack("<HH", file.read(4))))
        left = part.compress_size
        while left and (piece := file.read(min(left, _PIECE))):
            left -= len(piece)
            yield piece


def _inflated(path: Path, part: zipfile.ZipInfo) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    for packed in _packed(path, part):
        while packed and not unpacker.eof:
            yield unpacker.decompress(packed, _PIECE)
            packed = unpacker.unconsumed_tail


def _unzstd(path: Path, part: zipfile.ZipInfo) -> Iterator[bytes]:
    import zstandard  # comes with inspect_ai, which alone writes such parts

    unpacker = zstandard.ZstdDecompressor(max_window_size=_PIECE * 128).decompressobj(write_size=_PIECE)
    for packed in _packed(path, part):
        for first in range(0, len(packed), _SMALL):
            yield unpacker.decompress(packed[first : first + _SMALL])
