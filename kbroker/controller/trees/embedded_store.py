"""Nodes of the embedded tree in a SQLite file, shared by the sessions that use it.

One multi is one transaction, synced before it is answered, so it survives kill -9 and a power failure. Statements run
in a worker thread, one at a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from kbroker.controller.trees.metadata_file import open_metadata_file, storage_failure
from kbroker.controller.trees.tree import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    NoChildrenForEphemerals,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    OperationResult,
    SessionLost,
    SetData,
    Stat,
    TreeOperation,
    Watch,
    WatchEvent,
    WatchKind,
    parent_of,
)
from kbroker.controller.trees.watch_table import WatchTable
from kbroker.errors import StorageFailure

if TYPE_CHECKING:
    import sqlite3

__all__ = ["EmbeddedStore", "MakeRoom", "no_reserve", "open_embedded_store"]

T = TypeVar("T")

MakeRoom = Callable[[StorageFailure], bool]

# Paths in one SELECT; older releases of SQLite accept at most 999.
_READ_BATCH: Final = 500


def no_reserve(_failure: StorageFailure) -> bool:
    """Frees no space: for a file without a reserve."""
    return False


class EmbeddedStore:
    """Synchronous; `run` calls its methods in a worker thread, one at a time.

    A broker opens one session. Tests open several to run a whole cluster in one process.
    """

    def __init__(self, connection: sqlite3.Connection, path: str, make_room: MakeRoom = no_reserve) -> None:
        self._connection = connection
        self._path = path
        self._make_room = make_room
        self._limiter = trio.CapacityLimiter(1)
        self._watches = WatchTable()
        self._sessions: set[int] = set()

    async def run(self, call: Callable[..., T], *arguments: object) -> T:
        """Calls a method in the worker thread; again if the disk is full and `make_room` has freed space."""
        while True:
            try:
                return await trio.to_thread.run_sync(self._call, call, arguments, limiter=self._limiter)
            except StorageFailure as failure:
                if not self._make_room(failure):
                    raise

    def _call(self, call: Callable[..., T], arguments: tuple[object, ...]) -> T:
        import sqlite3

        try:
            return call(*arguments)
        except sqlite3.Error as failure:
            raise storage_failure(failure, self._path) from failure

    def open_session(self) -> int:
        """Returns the id of a new session: the zxid at its start."""
        with self._transaction():
            zxid = self._next_zxid()
        self._sessions.add(zxid)
        return zxid

    def end_session(self, session_id: int) -> None:
        """Removes the session's ephemeral nodes and watches, as ZooKeeper does when a session expires."""
        self._watches.remove_session(session_id)
        rows = self._connection.execute("SELECT path FROM node WHERE owner = ?", (session_id,)).fetchall()
        self.multi(session_id, [Delete(path) for (path,) in rows])
        self._sessions.discard(session_id)

    def get(self, session_id: int, path: str, watch: Watch | None) -> Node:
        node = self._find(path)
        if node is None:
            raise NoNode(path)
        self._watches.add_data_watch(session_id, path, watch)
        return node

    def get_many(
        self, session_id: int, paths: Sequence[str], watches: Sequence[Watch | None] = ()
    ) -> list[Node | None]:
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
        for path, watch in zip(paths, watches, strict=False):
            if path in found:
                self._watches.add_data_watch(session_id, path, watch)
        return [found.get(path) for path in paths]

    def exists(self, session_id: int, path: str, watch: Watch | None) -> Stat | None:
        node = self._find(path)
        self._watches.add_data_watch(session_id, path, watch)
        return None if node is None else node.stat

    def children(self, session_id: int, path: str, watch: Watch | None) -> list[str]:
        if self._find(path) is None:
            raise NoNode(path)
        self._watches.add_child_watch(session_id, path, watch)
        prefix = len(path.rstrip("/")) + 1
        rows = self._connection.execute("SELECT path FROM node WHERE parent = ? ORDER BY path", (path,))
        return [child[prefix:] for (child,) in rows]

    def multi(self, session_id: int, operations: Sequence[TreeOperation]) -> list[OperationResult]:
        if session_id not in self._sessions:
            raise SessionLost(operations[0].path if operations else "/")
        events: list[WatchEvent] = []
        results: list[OperationResult] = []
        with self._transaction():
            zxid = self._next_zxid()
            for index, operation in enumerate(operations):
                results.append(self._apply(operation, index, zxid, session_id, events))
        self._watches.fire(events)
        return results

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            # A failed COMMIT may have rolled the transaction back already.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

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
        self, operation: TreeOperation, index: int, zxid: int, session_id: int, events: list[WatchEvent]
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


@asynccontextmanager
async def open_embedded_store(path: Path | str, make_room: MakeRoom = no_reserve) -> AsyncIterator[EmbeddedStore]:
    """Opens or creates the file. ":memory:" keeps the nodes in memory.

    `make_room`: called when the disk is full. Returns whether it has freed space, so that a retry makes sense.
    """
    connection = None
    while connection is None:
        try:
            connection = await trio.to_thread.run_sync(open_metadata_file, str(path))
        except StorageFailure as failure:
            if not make_room(failure):
                raise
    try:
        yield EmbeddedStore(connection, str(path), make_room)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(connection.close)
