"""The metadata tree of a single node, which has no ZooKeeper: sessions over an `EmbeddedStore`.

Each opening of the file is a new session. Ephemeral nodes of earlier sessions are deleted when the file is opened.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from kbroker.controller.trees.embedded_store import EmbeddedStore, MakeRoom, no_reserve, open_embedded_store
from kbroker.controller.trees.tree import (
    ANY_VERSION,
    Create,
    Delete,
    InvalidPath,
    Node,
    OperationResult,
    SessionListener,
    SessionState,
    SetData,
    Stat,
    TreeOperation,
    Watch,
    check_operations,
    path_problem,
)

__all__ = ["EmbeddedTree", "open_embedded_tree"]


class EmbeddedTree:
    """A session of an embedded store; see `Tree` for the contract."""

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
        """Ends the session and opens a new one, as ZooKeeper does when a client was away for too long."""
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

    async def get_many(self, paths: Sequence[str], watches: Sequence[Watch | None] = ()) -> list[Node | None]:
        return await self._store.run(self._store.get_many, self._session_id, paths, watches)

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

    async def multi(self, operations: Sequence[TreeOperation]) -> list[OperationResult]:
        check_operations(operations)
        if not operations:
            return []
        return await self._store.run(self._store.multi, self._session_id, operations)


def _check_path(path: str) -> None:
    if path_problem(path) is not None:
        raise InvalidPath(path)


@asynccontextmanager
async def open_embedded_tree(path: Path | str, make_room: MakeRoom = no_reserve) -> AsyncIterator[EmbeddedTree]:
    """`make_room`: as in `open_embedded_store`."""
    async with open_embedded_store(path, make_room) as store:
        yield EmbeddedTree(store, await store.run(store.open_session))
