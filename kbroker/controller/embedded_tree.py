"""The metadata tree in a SQLite file: what a node without a ZooKeeper beside it keeps its metadata in.

One multi is one transaction, synced before it is answered, so it survives kill -9 and a power cut. Every statement runs
in one worker thread at a time. Each opening is a new session; ephemeral nodes that earlier ones left are gone by then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from kbroker.controller.tree import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    InvalidPath,
    NoChildrenForEphemerals,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    OperationResult,
    SessionListener,
    SessionLost,
    SessionState,
    SetData,
    Stat,
    Watch,
    WatchEvent,
    WatchKind,
    check_operations,
    parent_of,
    path_problem,
)
from kbroker.errors import StorageFailure, UserError

if TYPE_CHECKING:
    import sqlite3

__all__ = ["EmbeddedStore", "EmbeddedTree", "open_embedded_store", "open_embedded_tree"]

T = TypeVar("T")

FORMAT_VERSION: Final = 1

# Paths asked for in one statement; SQLite takes 999 in its older releases.
_READ_BATCH: Final = 500

# `creates` counts the children ever created: it numbers the sequential ones, as in ZooKeeper.
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


class EmbeddedStore:
    """The file and the watches, shared by the sessions over them; all of it synchronous, one call at a time.

    A broker opens one session. Several are for tests that play a whole cluster in one process.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._token = trio.lowlevel.current_trio_token()
        self._limiter = trio.CapacityLimiter(1)
        self._data_watches: dict[str, list[tuple[int, Watch]]] = {}
        self._child_watches: dict[str, list[tuple[int, Watch]]] = {}
        self._sessions: set[int] = set()

    async def run(self, call: Callable[..., T], *arguments: object) -> T:
        return await trio.to_thread.run_sync(self._guarded, call, arguments, limiter=self._limiter)

    def _guarded(self, call: Callable[..., T], arguments: tuple[object, ...]) -> T:
        import sqlite3

        try:
            return call(*arguments)
        except sqlite3.Error as failure:
            raise _storage_failure(failure) from failure

    def open_session(self) -> int:
        """A new session's id: the zxid at which it began."""
        self._connection.execute("BEGIN IMMEDIATE")
        zxid = self._next_zxid()
        self._connection.execute("COMMIT")
        self._sessions.add(zxid)
        return zxid

    def end_session(self, session_id: int) -> None:
        """Takes the session's ephemeral nodes and watches away, as if ZooKeeper had given it up."""
        for watches in (self._data_watches, self._child_watches):
            for path, registered in list(watches.items()):
                watches[path] = [entry for entry in registered if entry[0] != session_id]
        rows = self._connection.execute("SELECT path FROM node WHERE owner = ?", (session_id,)).fetchall()
        self.multi(session_id, [Delete(path) for (path,) in rows])
        self._sessions.discard(session_id)

    def get(self, session_id: int, path: str, watch: Watch | None) -> Node:
        node = self._find(path)
        if node is None:
            raise NoNode(path)
        if watch is not None:
            self._data_watches.setdefault(path, []).append((session_id, watch))
        return node

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        found: dict[str, Node] = {}
        for start in range(0, len(paths), _READ_BATCH):
            batch = paths[start : start + _READ_BATCH]
            rows = self._connection.execute(
                "SELECT path, data, czxid, mzxid, version, owner FROM node "
                f"WHERE path IN ({','.join('?' * len(batch))})",
                batch,
            )
            for path, data, *stat in rows:
                found[path] = Node(data, Stat(*stat))
        return [found.get(path) for path in paths]

    def exists(self, session_id: int, path: str, watch: Watch | None) -> Stat | None:
        node = self._find(path)
        if watch is not None:
            self._data_watches.setdefault(path, []).append((session_id, watch))
        return None if node is None else node.stat

    def children(self, session_id: int, path: str, watch: Watch | None) -> list[str]:
        if self._find(path) is None:
            raise NoNode(path)
        if watch is not None:
            self._child_watches.setdefault(path, []).append((session_id, watch))
        prefix = len(path.rstrip("/")) + 1
        rows = self._connection.execute("SELECT path FROM node WHERE parent = ? ORDER BY path", (path,))
        return [child[prefix:] for (child,) in rows]

    def multi(self, session_id: int, operations: Sequence[Operation]) -> list[OperationResult]:
        if session_id not in self._sessions:
            raise SessionLost(operations[0].path if operations else "/")
        events: list[WatchEvent] = []
        results: list[OperationResult] = []
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            zxid = self._next_zxid()
            for index, operation in enumerate(operations):
                results.append(self._apply(operation, index, zxid, session_id, events))
            self._connection.execute("COMMIT")
        except BaseException:
            # A failed COMMIT may have rolled back already.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._fire(events)
        return results

    def _next_zxid(self) -> int:
        row = self._connection.execute("UPDATE counter SET zxid = zxid + 1 RETURNING zxid").fetchone()
        return int(row[0])

    def _find(self, path: str) -> Node | None:
        row = self._connection.execute(
            "SELECT data, czxid, mzxid, version, owner FROM node WHERE path = ?", (path,)
        ).fetchone()
        return None if row is None else Node(row[0], Stat(*row[1:]))

    def _expect(self, path: str, version: int, index: int) -> Stat:
        node = self._find(path)
        if node is None:
            raise NoNode(path, index)
        if version not in (ANY_VERSION, node.stat.version):
            raise BadVersion(path, index)
        return node.stat

    def _apply(
        self, operation: Operation, index: int, zxid: int, session_id: int, events: list[WatchEvent]
    ) -> OperationResult:
        match operation:
            case Create():
                return self._create(operation, index, zxid, session_id, events)
            case SetData(path, data, version):
                stat = self._expect(path, version, index)
                self._connection.execute(
                    "UPDATE node SET data = ?, mzxid = ?, version = version + 1 WHERE path = ?", (data, zxid, path)
                )
                events.append(WatchEvent(WatchKind.DATA_CHANGED, path))
                return stat._replace(mzxid=zxid, version=stat.version + 1)
            case Delete(path, version):
                self._expect(path, version, index)
                if self._connection.execute("SELECT 1 FROM node WHERE parent = ? LIMIT 1", (path,)).fetchone():
                    raise NotEmpty(path, index)
                self._connection.execute("DELETE FROM node WHERE path = ?", (path,))
                events.append(WatchEvent(WatchKind.DELETED, path))
                events.append(WatchEvent(WatchKind.CHILDREN_CHANGED, parent_of(path)))
                return None
            case Check(path, version):
                self._expect(path, version, index)
                return None

    def _create(self, create: Create, index: int, zxid: int, session_id: int, events: list[WatchEvent]) -> str:
        path = create.path
        if path == "/":
            raise NodeExists(path, index)
        parent = parent_of(path)
        row = self._connection.execute(
            "UPDATE node SET creates = creates + 1 WHERE path = ? RETURNING creates, owner", (parent,)
        ).fetchone()
        if row is None:
            raise NoNode(path, index)
        creates, parent_owner = row
        if create.sequential:
            path = f"{path}{creates - 1:010d}"
        if self._find(path) is not None:
            raise NodeExists(path, index)
        if parent_owner:
            raise NoChildrenForEphemerals(path, index)
        owner = session_id if create.ephemeral else 0
        self._connection.execute(
            "INSERT INTO node (path, parent, data, czxid, mzxid, version, owner) VALUES (?, ?, ?, ?, ?, 0, ?)",
            (path, parent, create.data, zxid, zxid, owner),
        )
        events.append(WatchEvent(WatchKind.CREATED, path))
        events.append(WatchEvent(WatchKind.CHILDREN_CHANGED, parent))
        return path

    def _fire(self, events: list[WatchEvent]) -> None:
        for event in events:
            fired: list[tuple[int, Watch]] = []
            if event.kind is not WatchKind.CHILDREN_CHANGED:
                fired += self._data_watches.pop(event.path, ())
            if event.kind in (WatchKind.CHILDREN_CHANGED, WatchKind.DELETED):
                fired += self._child_watches.pop(event.path, ())
            for _session_id, watch in fired:
                # In the queue ahead of this call's own answer, and of every later one.
                self._token.run_sync_soon(watch, event)


class EmbeddedTree:
    """A session over a store; see `Tree` for the contract."""

    def __init__(self, store: EmbeddedStore, session_id: int) -> None:
        self._store = store
        self._session_id = session_id
        self._session_state = SessionState.CONNECTED
        self._session_listeners: list[SessionListener] = []

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_state(self) -> SessionState:
        return self._session_state

    def add_session_listener(self, listener: SessionListener) -> None:
        self._session_listeners.append(listener)

    async def expire(self) -> None:
        """What a real session suffers when its owner is away for too long; a new one takes its place."""
        await self._store.run(self._store.end_session, self._session_id)
        self._enter(SessionState.LOST)
        self._session_id = await self._store.run(self._store.open_session)
        self._enter(SessionState.CONNECTED)

    def _enter(self, state: SessionState) -> None:
        self._session_state = state
        for listener in self._session_listeners:
            listener(state)

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        (created,) = await self.multi([Create(path, data, ephemeral, sequential)])
        assert isinstance(created, str)
        return created

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        _check_path(path)
        return await self._store.run(self._store.get, self._session_id, path, watch)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return await self._store.run(self._store.get_many, paths)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        (stat,) = await self.multi([SetData(path, data, version)])
        assert isinstance(stat, Stat)
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self.multi([Delete(path, version)])

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        _check_path(path)
        return await self._store.run(self._store.exists, self._session_id, path, watch)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        _check_path(path)
        return await self._store.run(self._store.children, self._session_id, path, watch)

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        check_operations(operations)
        if not operations:
            return []
        return await self._store.run(self._store.multi, self._session_id, operations)


def _check_path(path: str) -> None:
    if path_problem(path) is not None:
        raise InvalidPath(path)


@asynccontextmanager
async def open_embedded_tree(path: Path | str) -> AsyncIterator[EmbeddedTree]:
    async with open_embedded_store(path) as store:
        yield EmbeddedTree(store, await store.run(store.open_session))


@asynccontextmanager
async def open_embedded_store(path: Path | str) -> AsyncIterator[EmbeddedStore]:
    """Opens or creates the file; ":memory:" keeps the nodes nowhere."""
    connection = await trio.to_thread.run_sync(_connect, str(path))
    try:
        yield EmbeddedStore(connection)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(connection.close)


def _connect(path: str) -> sqlite3.Connection:
    import sqlite3

    try:
        # Calls come from whichever thread is free, one at a time; transactions are begun and ended by hand.
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as failure:
        raise UserError(f"the metadata file {path} cannot be opened: {failure}") from failure
    try:
        _prepare(connection, path)
    except sqlite3.Error as failure:
        connection.close()
        raise _refusal_to_open(failure, path) from failure
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    # Exclusive before the first access: no second broker on the file, and no shared memory beside it.
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > FORMAT_VERSION:
        raise UserError(
            f"the metadata file {path} has format {version}, this release knows {FORMAT_VERSION}: use a newer kbroker"
        )
    if version == 0:
        connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {FORMAT_VERSION}; COMMIT;")
        return
    # Whoever made an ephemeral node is gone: there is one opener at a time.
    connection.execute("DELETE FROM node WHERE owner != 0")


def _refusal_to_open(failure: sqlite3.Error, path: str) -> Exception:
    import sqlite3

    primary = getattr(failure, "sqlite_errorcode", 0) & 0xFF
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return UserError(f"the metadata file {path} is in use by another process")
    if primary in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return UserError(f"the metadata file {path} cannot be written: {failure}")
    if primary == sqlite3.SQLITE_NOTADB:
        return UserError(f"{path} is not a metadata file of kbroker")
    return _storage_failure(failure)


def _storage_failure(failure: sqlite3.Error) -> StorageFailure:
    import sqlite3

    primary = getattr(failure, "sqlite_errorcode", 0) & 0xFF
    return StorageFailure(f"the metadata file: {failure}", is_full=primary == sqlite3.SQLITE_FULL)
