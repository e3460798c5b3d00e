"""An embedded tree whose connection is lost, or where another broker acts, at the calls that a test chooses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio

from kbroker.controller.trees.embedded_tree import EmbeddedTree
from kbroker.controller.trees.tree import (
    ConnectionLost,
    Node,
    OperationResult,
    SessionLost,
    SessionState,
    Stat,
    TreeOperation,
    Watch,
)
from tests.controller.conftest import EmbeddedSessions, Sessions

__all__ = ["UnreliableTree", "open_unreliable"]


class UnreliableTree(EmbeddedTree):
    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self._losses: dict[str, int] = {}
        self._hooks: dict[str, Callable[[], Awaitable[object]]] = {}
        self._is_away = False
        self._expires_at: int | None = None
        self.calls: list[str] = []
        """Names of all calls so far, with the first path of each."""
        self.lost: list[str] = []
        """Calls whose answers were lost."""

    def lose(self, call: str, times: int = 1) -> None:
        """Lets the next calls with this name and path ("get /controller") lose their answers, after they are done."""
        self._losses[call] = times

    def run_after(self, call: str, hook: Callable[[], Awaitable[object]]) -> None:
        """Runs `hook` once, after the next such call and before its answer: for what another broker does meanwhile."""
        self._hooks[call] = hook

    def expire_after(self, calls: int) -> None:
        """Lets the session expire after so many more calls. The call that follows is done, but its answer is lost."""
        self._expires_at = len(self.calls) + calls + 1

    @property
    def is_to_expire(self) -> bool:
        return self._expires_at is not None

    def suspend(self) -> None:
        """Cuts the connection: the session stays, and calls fail until `resume`."""
        self._is_away = True
        self._enter(SessionState.SUSPENDED)

    def resume(self) -> None:
        self._is_away = False
        self._enter(SessionState.CONNECTED)

    async def _answered(self, name: str, path: str, answer: Any) -> Any:
        call = f"{name} {path}"
        self.calls.append(call)
        if self._is_away:
            answer.close()
            await trio.lowlevel.checkpoint()
            raise ConnectionLost(path)
        result = await answer
        if self._expires_at is not None and len(self.calls) >= self._expires_at:
            self._expires_at = None
            await self.expire()
            raise SessionLost(path)
        hook = self._hooks.pop(call, None)
        if hook is not None:
            await hook()
        if self._losses.get(call, 0) > 0:
            self._losses[call] -= 1
            self.lost.append(call)
            raise ConnectionLost(path)
        return result

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        node: Node = await self._answered("get", path, super().get(path, watch))
        return node

    async def get_many(self, paths: Sequence[str], watches: Sequence[Watch | None] = ()) -> list[Node | None]:
        path = paths[0] if paths else ""
        nodes: list[Node | None] = await self._answered("get", path, super().get_many(paths, watches))
        return nodes

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        stat: Stat | None = await self._answered("exists", path, super().exists(path, watch))
        return stat

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        names: list[str] = await self._answered("children", path, super().children(path, watch))
        return names

    async def multi(self, operations: Sequence[TreeOperation]) -> list[OperationResult]:
        path = operations[0].path if operations else ""
        results: list[OperationResult] = await self._answered("write", path, super().multi(operations))
        return results


async def open_unreliable(sessions: Sessions) -> UnreliableTree:
    assert isinstance(sessions, EmbeddedSessions)
    return UnreliableTree(sessions.store, await sessions.store.run(sessions.store.open_session))
