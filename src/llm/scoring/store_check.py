"""Checking a score store from end to end without changing it: opened to read only, nothing set aside."""

import sqlite3
from pathlib import Path
from urllib.parse import quote

from llm.errors import InputError
from llm.scoring.store_records import DamagedRecordError, unpack_scores

APPLICATION_ID = 0x4C4C6D53


def faults_in(path: Path) -> list[str]:
    """What is wrong with the store at `path`: a sentence for each fault, none if it is whole.

    Raises:
        InputError: it is a whole database of another program.
    """
    try:
        connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=60)
    except sqlite3.Error as error:
        return [f"{path} cannot be opened: {error}"]
    try:
        found = connection.execute("PRAGMA integrity_check(20)").fetchall()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            raise InputError(f"{path} is a database of another program: give the path of a score store")
        bad = sum(not _is_whole(*row) for row in connection.execute("SELECT digest, record FROM scores"))
    except sqlite3.Error as error:
        return [f"{path} cannot be read: {error}"]
    finally:
        connection.close()
    faults = [row[0] for row in found if row[0] != "ok"]
    return [*faults, *([f"{bad} stored scores do not match their checksums"] if bad else [])]


def _is_whole(digest: bytes, record: bytes) -> bool:
    try:
        unpack_scores(digest, record)
    except DamagedRecordError:
        return False
    return True
