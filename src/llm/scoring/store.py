"""Scored requests on disk: what was computed once is never computed again, whichever harness asks.

One SQLite file in write-ahead mode. A row is one request under one namespace (model fingerprint, dtype, logits dtype,
engine version), found by the digest of its token ids. A batch is one transaction, so a run killed at any moment loses
the batch it was computing and no more, and two processes may use one file at once.
"""

import os
import shutil
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from llm.errors import InputError
from llm.scoring.requests import ScoreRequest, TokenScores
from llm.scoring.store_check import APPLICATION_ID, faults_in
from llm.scoring.store_records import DamagedRecordError, pack_scores, request_digest, unpack_scores
from llm.scoring.stored_scorer import StoredScorer

__all__ = ["ScoreStore", "StoreFullError", "StoreInfo", "StoredScorer"]

SCHEMA_VERSION = 1
BUSY_SECONDS = 60
CHECKED_BYTES = 64 << 20
"""A file up to this size is checked as a whole when it is opened; `verify` checks any."""
KEYS_AT_ONCE = 500
USE_GRAIN_SECONDS = 3600
"""A row's time of use is not written again within this time: reading stays reading."""

_SCHEMA = (
    "CREATE TABLE namespaces (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    "CREATE TABLE scores (namespace INTEGER NOT NULL, digest BLOB NOT NULL, record BLOB NOT NULL, "
    "used INTEGER NOT NULL, PRIMARY KEY (namespace, digest)) WITHOUT ROWID",
    "CREATE INDEX scores_by_use ON scores (used)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

T = TypeVar("T")


class StoreFullError(InputError):
    """The disk is full: what was stored so far is whole, and the same command goes on from there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreInfo:
    """What a store holds: bytes in use, and the number of requests in all and by namespace."""

    path: Path
    num_bytes: int
    num_requests: int
    by_namespace: Mapping[str, int]


class ScoreStore:
    """The store at `path`, made on first use; for any number of threads and processes.

    A damaged file is renamed to `<name>.damaged-N` with a warning, and a new one begun.

    Args:
        max_bytes: when the file outgrows this, the requests that were not used for longest are dropped.

    Raises:
        InputError: the place cannot be used (not writable, or somebody else's database).
        StoreFullError: the disk is full.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_bytes: int = 4 << 30) -> None:
        self.path = Path(path)
        self.max_bytes = max_bytes
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._namespaces: dict[str, int] = {}
        self._run(lambda _: None)

    def get(self, namespace: str, requests: Sequence[ScoreRequest]) -> list[TokenScores | None]:
        """The stored scores, None where there are none."""
        digests = [request_digest(request) for request in requests]
        return self._run(lambda connection: self._read(connection, namespace, digests))

    def put(self, namespace: str, requests: Sequence[ScoreRequest], scores: Sequence[TokenScores]) -> None:
        """Store scores (their `top` and `ranks` left out) in one transaction."""
        now = int(time.time())
        digests = [request_digest(request) for request in requests]
        records = [(digest, pack_scores(digest, one), now) for digest, one in zip(digests, scores, strict=True)]
        if records:
            self._run(lambda connection: self._write(connection, namespace, records))

    def info(self) -> StoreInfo:
        """Size and counts."""
        counts = self._run(
            lambda connection: connection.execute(
                "SELECT name, count(digest) FROM namespaces LEFT JOIN scores ON namespace = id "
                "GROUP BY id ORDER BY name"
            ).fetchall()
        )
        return StoreInfo(
            path=self.path,
            num_bytes=self._run(_used_bytes),
            num_requests=sum(count for _, count in counts),
            by_namespace=dict(counts),
        )

    def verify(self) -> list[str]:
        """What is wrong with the file: a sentence for each fault, none if it is whole. Nothing is changed."""
        return faults_in(self.path)

    def prune(self, max_bytes: int | None = None) -> int:
        """Drop the requests not used for longest until the file fits `max_bytes` (default: its own bound); how many."""
        bound = self.max_bytes if max_bytes is None else max_bytes
        return self._run(lambda connection: self._prune(connection, bound))

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            self._namespaces = {}

    # -- reading and writing -------------------------------------------------------------------------------------

    def _read(
        self, connection: sqlite3.Connection, namespace: str, digests: Sequence[bytes]
    ) -> list[TokenScores | None]:
        number = self._namespace(connection, namespace)
        found: dict[bytes, TokenScores] = {}
        stale: list[tuple[int, int, bytes]] = []
        now = int(time.time())
        for first in range(0, len(digests), KEYS_AT_ONCE):
            part = digests[first : first + KEYS_AT_ONCE]
            query = f"SELECT digest, record, used FROM scores WHERE namespace = ? AND digest IN ({_marks(len(part))})"
            for digest, record, used in connection.execute(query, (number, *part)):
                found[digest] = unpack_scores(digest, record)
                if used < now - USE_GRAIN_SECONDS:
                    stale.append((now, number, digest))
        if stale:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany("UPDATE scores SET used = ? WHERE namespace = ? AND digest = ?", stale)
        return [found.get(digest) for digest in digests]

    def _write(
        self, connection: sqlite3.Connection, namespace: str, records: Sequence[tuple[bytes, bytes, int]]
    ) -> None:
        number = self._namespace(connection, namespace)
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "INSERT OR REPLACE INTO scores (namespace, digest, record, used) VALUES (?, ?, ?, ?)",
                ((number, *record) for record in records),
            )
        if _used_bytes(connection) > self.max_bytes:
            self._prune(connection, self.max_bytes * 9 // 10)

    def _namespace(self, connection: sqlite3.Connection, name: str) -> int:
        if name not in self._namespaces:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("INSERT OR IGNORE INTO namespaces (name) VALUES (?)", (name,))
            row = connection.execute("SELECT id FROM namespaces WHERE name = ?", (name,)).fetchone()
            self._namespaces[name] = int(row[0])
        return self._namespaces[name]

    def _prune(self, connection: sqlite3.Connection, max_bytes: int) -> int:
        dropped = 0
        while (num_bytes := _used_bytes(connection)) > max_bytes:
            (count,) = connection.execute("SELECT count(*) FROM scores").fetchone()
            if not count:
                break
            share = -(-count * (num_bytes - max_bytes) // num_bytes)
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(
                    "DELETE FROM scores WHERE (namespace, digest) IN "
                    "(SELECT namespace, digest FROM scores ORDER BY used LIMIT ?)",
                    (share,),
                )
            dropped += share
            connection.execute("VACUUM")  # what is left stands scattered over half-empty pages
        if dropped:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return dropped

    # -- the file ------------------------------------------------------------------------------------------------

    def _run(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Run an action on the open file; a damaged one is set aside first, once."""
        with self._lock:
            try:
                return self._attempt(action)
            except (DamagedRecordError, sqlite3.DatabaseError) as error:
                if not _means_damage(error):
                    raise self._complaint(error) from error
                self._set_aside(error)
            try:
                return self._attempt(action)
            except sqlite3.DatabaseError as error:
                raise self._complaint(error) from error

    def _attempt(self, action: Callable[[sqlite3.Connection], T]) -> T:
        return action(self._open())

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise self._complaint(error) from error
            self._inode = _inode(self.path)
            self._connection = self._connect()
            self._inode = self._inode or _inode(self.path)
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, self.path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_aside(self, error: Exception) -> None:
        """Rename the file, unless another process has done so already."""
        self.close()
        if _inode(self.path) == self._inode != 0:
            target = _free_name(self.path)
            os.replace(self.path, target)
            for suffix in ("-wal", "-shm"):
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)
            warnings.warn(
                f"the score store {self.path} is damaged ({error}): it now is {target.name}, and a new one is begun",
                stacklevel=4,
            )

    def _complaint(self, error: Exception) -> InputError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        folder = next(parent for parent in self.path.absolute().parents if parent.exists())
        full = code == sqlite3.SQLITE_FULL or getattr(error, "errno", None) == 28
        if full or (code == sqlite3.SQLITE_IOERR and shutil.disk_usage(folder).free < 1 << 20):
            return StoreFullError(
                f"the disk is full at {folder}: free some space and give the same command again, it goes on from what "
                "is stored"
            )
        return InputError(
            f"the score store {self.path} cannot be used ({error}): give the path of a writable file of its own"
        )


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Settings, the schema where the file is new, and a check of the file."""
    _patiently(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchall())
    connection.execute("PRAGMA synchronous = NORMAL")
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        (num_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if not num_tables:
            for statement in _SCHEMA:
                connection.execute(statement)
        elif application != APPLICATION_ID:
            raise InputError(f"{path} is a database of another program: give the score store another path")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != SCHEMA_VERSION:
        raise DamagedRecordError(f"its layout has number {version}, not {SCHEMA_VERSION}")
    if path.stat().st_size <= CHECKED_BYTES:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise DamagedRecordError(verdict.splitlines()[-1])


def _patiently(action: Callable[[], object]) -> None:
    """Changing the journal mode does not wait for other processes by itself."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            action()
            return
        except sqlite3.OperationalError as error:
            if (error.sqlite_errorcode & 0xFF) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _means_damage(error: Exception) -> bool:
    if isinstance(error, DamagedRecordError):
        return True
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _used_bytes(connection: sqlite3.Connection) -> int:
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _inode(path: Path) -> int:
    """The file's number in its file system, 0 if there is none."""
    return path.stat().st_ino if path.exists() else 0


def _free_name(path: Path) -> Path:
    number = 1
    while (target := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return target


def _marks(count: int) -> str:
    return ",".join("?" * count)
