"""Nodes that any broker may change, with announcements of the changes below other nodes: ACLs, delegation tokens.

The writer knows its change at once; the other brokers read a changed node when they see its announcement. Reads and
writes exclude each other: otherwise an old read could undo a newer write. After a new session everything is read again,
because announcements may have come and gone. As in Kafka, every broker deletes announcements after 15 minutes.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple

import trio

from kbroker.clock import Clock
from kbroker.controller.trees.retries import retry_until_connected
from kbroker.controller.trees.tree import (
    ConnectionLost,
    NoNode,
    SessionLost,
    SessionState,
    Tree,
    TreeError,
    Watch,
    WatchEvent,
    ensure_path,
)
from kbroker.controller.trees.znodes import BadNode
from kbroker.errors import Refusal, StorageFailure
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["ATTEMPTS", "AnnouncedChanges", "Announcement"]

logger = logging.getLogger(__name__)

# Kafka's values.
ATTEMPTS: Final = 11
_RETRY_SECONDS: Final = 0.1
_RETRY_JITTER_SECONDS: Final = 0.05
_EXPIRATION_MS: Final = 15 * 60_000

_FAILURE_SECONDS: Final = 5.0  # between attempts to read a damaged tree


class Announcement(NamedTuple):
    parent: str
    path: str
    data: bytes


Read = Callable[[Sequence[Announcement] | None], Awaitable[None]]
"""Reads the nodes that announcements name; None: all nodes."""


class AnnouncedChanges:
    """Call `load` before the broker accepts clients, then `run`."""

    def __init__(
        self,
        tree: Tree,
        clock: Clock,
        parents: Sequence[str],
        *,
        about: str,
        timeout_s: float,
    ) -> None:
        """`parents`: nodes below which changes are announced. `timeout_s`: how long a change may wait for the tree."""
        self._tree = tree
        self._clock = clock
        self._parents = parents
        self._about = about
        self._timeout_s = timeout_s
        self._lock = trio.Lock()
        self._randomness = random.Random()
        self._watched: set[str] = set()
        self.seen: dict[str, int] = {}
        """Paths of announcements, and when this broker first saw them (ms)."""
        self._session_count = 1
        self._loaded_session = 0
        self._changed = trio.Event()
        tree.add_session_listener(self._on_session)

    async def load(self, paths: Sequence[str], read: Read) -> None:
        """Creates missing nodes, parents first, and reads everything."""

        async def load() -> None:
            for path in paths:
                await ensure_path(self._tree, path)
            await self._catch_up(read)

        await retry_until_connected(load)

    async def run(self, read: Read) -> None:
        """Follows the changes of other brokers."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            try:
                await retry_until_connected(lambda: self._catch_up(read))
            except (TreeError, StorageFailure) as failure:
                logger.error("Could not read %s; those that were read before stay in force: %r", self._about, failure)
                await trio.sleep(_FAILURE_SECONDS)
                self._changed.set()

    def _on_session(self, state: SessionState) -> None:
        self._watched.clear()
        if state is SessionState.CONNECTED:
            self._session_count += 1
            self._changed.set()

    def _watch(self, path: str) -> Watch | None:
        if path in self._watched:
            return None
        self._watched.add(path)

        def on_watch(_event: WatchEvent) -> None:
            self._watched.discard(path)
            self._changed.set()

        return on_watch

    async def _catch_up(self, read: Read) -> None:
        """Reads the nodes that were announced as changed, or all. The watches are set before the nodes are read."""
        async with self._lock:
            session = self._session_count
            paths, unseen = await self._read_announcements()
            await read(unseen if self._loaded_session == session else None)
            self._loaded_session = session
            now_ms = self._clock.now_ms()
            self.seen = {path: self.seen.get(path, now_ms) for path in paths}
            await self._delete_old(now_ms)

    async def _read_announcements(self) -> tuple[list[str], list[Announcement]]:
        """Returns the paths of all announcements, and those announcements that were not seen before."""
        announced: list[str] = []
        unseen: list[Announcement] = []
        for parent in self._parents:
            paths = [f"{parent}/{name}" for name in await self._tree.children(parent, self._watch(parent))]
            announced += paths
            new = [path for path in paths if path not in self.seen]
            nodes = zip(new, await self._tree.get_many(new), strict=True)
            unseen += [Announcement(parent, path, node.data) for path, node in nodes if node is not None]
        return announced, unseen

    async def _delete_old(self, now_ms: int) -> None:
        for path in [path for path, seen_ms in self.seen.items() if now_ms - seen_ms > _EXPIRATION_MS]:
            with suppress(NoNode):  # another broker was quicker
                await self._tree.delete(path)
            del self.seen[path]

    async def write(self, attempt: Callable[[], Awaitable[bool]]) -> bool:
        """Calls `attempt` until it returns True: False means that another broker has changed the node since its read.

        Returns False after the last attempt. Turns failures of the tree into a Refusal.
        """
        async with self._writing():
            for _ in range(ATTEMPTS):
                if await attempt():
                    return True
                await trio.sleep(_RETRY_SECONDS + self._randomness.random() * _RETRY_JITTER_SECONDS)
        return False

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        try:
            with trio.fail_after(self._timeout_s):
                async with self._lock:
                    yield
        except (ConnectionLost, SessionLost, trio.TooSlowError) as failure:
            raise Refusal(ErrorCode.REQUEST_TIMED_OUT, "The metadata store did not answer.") from failure
        except BadNode as failure:
            raise Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, str(failure)) from failure
        except StorageFailure as failure:
            raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(failure)) from failure
