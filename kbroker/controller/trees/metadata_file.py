"""The SQLite file of the embedded tree: its schema, its format version, and its errors.

Opened exclusively: a second broker cannot use the same file.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from kbroker.errors import StorageFailure, UserError
from kbroker.log.files.filesystem import OsFileSystem

if TYPE_CHECKING:
    import sqlite3

__all__ = ["open_metadata_file", "storage_failure"]

FORMAT_VERSION: Final = 1
IN_MEMORY: Final = ":memory:"

_TRIAL: Final = bytes(1 << 16)

# `creates` counts all children ever created: it numbers sequential nodes, as in ZooKeeper.
_SCHEMA: Final = """
CREATE TABLE node (
    path TEXT PRIMARY KEY,
    parent TEXT NOT NULL,
    data BLOB NOT NULL,
    czxid INTEGER NOT NULL,
    mzxid INTEGER NOT NULL,
    version INTEGER NOT NULL,
    owner INTEGER NOT NULL,
    creates INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX node_by_parent ON node (parent);
CREATE INDEX node_by_owner ON node (owner) WHERE owner != 0;
CREATE TABLE counter (zxid INTEGER NOT NULL);
INSERT INTO counter VALUES (0);
INSERT INTO node (path, parent, data, czxid, mzxid, version, owner) VALUES ('/', '', x'', 0, 0, 0, 0);
"""


def open_metadata_file(path: str) -> sqlite3.Connection:
    """Opens the file, or creates one that only its owner can read. Raises UserError if it cannot be used."""
    import sqlite3

    if path != IN_MEMORY:
        # Hashes of passwords are in it. SQLite gives the rights of the file to its log. It reports what fails here.
        with suppress(OSError):
            os.close(os.open(path, os.O_RDONLY | os.O_CREAT, 0o600))
    try:
        # Calls are made by different threads, one at a time. Transactions are begun and ended explicitly.
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as failure:
        raise UserError(f"Cannot open the metadata file {path}: {failure}") from failure
    try:
        _prepare(connection, path)
    except sqlite3.Error as failure:
        connection.close()
        raise _open_failure(failure, path) from failure
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    # Before the first access: an exclusive lock keeps out a second broker, and needs no shared-memory file.
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > FORMAT_VERSION:
        raise UserError(
            f"The metadata file {path} has format {version}, but this release supports only {FORMAT_VERSION}. "
            "Use a newer kbroker."
        )
    if version == 0:
        connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {FORMAT_VERSION}; COMMIT;")
        return
    # Ephemeral nodes belong to earlier sessions, which have all ended: the file is opened exclusively.
    connection.execute("DELETE FROM node WHERE owner != 0")


def _open_failure(failure: sqlite3.Error, path: str) -> Exception:
    import sqlite3

    primary = getattr(failure, "sqlite_errorcode", 0) & 0xFF
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return UserError(f"The metadata file {path} is in use by another process.")
    if primary in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return UserError(f"The metadata file {path} cannot be written: {failure}")
    if primary == sqlite3.SQLITE_NOTADB:
        return UserError(f"{path} is not a metadata file of kbroker.")
    return storage_failure(failure, path)


def storage_failure(failure: sqlite3.Error, path: str) -> StorageFailure:
    """Returns the failure of a statement on the file at `path`. Blocks.

    SQLite reports only ENOSPC as full. A used-up quota (EDQUOT) is a failed write to it, and the errno is lost: whether
    there is space, a write to another file of the directory shows.
    """
    import sqlite3

    code = getattr(failure, "sqlite_errorcode", 0)
    is_full = code & 0xFF == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR_WRITE and not _has_space(path))
    return StorageFailure(f"metadata file: {failure}", is_full=is_full)


def _has_space(path: str) -> bool:
    """Whether the directory of the file has some space. True if a write fails for another reason."""
    filesystem, trial = OsFileSystem(), f"{path}.trial"
    try:
        filesystem.replace(trial, _TRIAL, sync=False)
        filesystem.remove(trial)
    except StorageFailure as failure:
        return not failure.is_full
    return True
