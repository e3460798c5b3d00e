"""ACLs in the metadata tree: writes entries, announces each change, and follows the changes of other brokers.

Any broker may write. A write expects the version of the node that it has read; if another broker was quicker, the node
is read again. The broker's own index has a change as soon as the tree has accepted it; the other brokers read the
changed node when they see the announcement. While the tree does not answer, the known entries stay in force.
"""

from __future__ import annotations

import gc
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final

import trio

from kbroker.clock import Clock
from kbroker.controller.trees import acl_znodes
from kbroker.controller.trees.retries import retry_until_connected
from kbroker.controller.trees.tree import (
    BadVersion,
    ConnectionLost,
    Create,
    Delete,
    InvalidPath,
    Node,
    NodeExists,
    NodeTooLarge,
    NoNode,
    SessionLost,
    SessionState,
    SetData,
    Tree,
    TreeError,
    TreeOperation,
    Watch,
    WatchEvent,
    ensure_path,
)
from kbroker.controller.trees.znodes import BadNode
from kbroker.errors import Refusal, StorageFailure
from kbroker.protocol.error_codes import ErrorCode
from kbroker.security.acls.entries import AclBinding, AclEntry, ResourcePattern
from kbroker.security.acls.filters import AclFilter
from kbroker.security.acls.index import AclIndex
from kbroker.time_slice import TimeSlice

__all__ = ["AclStore", "RemovedAcl"]

logger = logging.getLogger(__name__)

# Kafka's values.
_ATTEMPTS: Final = 11
_RETRY_SECONDS: Final = 0.1
_RETRY_JITTER_SECONDS: Final = 0.05
_EXPIRATION_MS: Final = 15 * 60_000

_FAILURE_SECONDS: Final = 5.0  # between attempts to read a damaged tree

_Entries = frozenset[AclEntry]
RemovedAcl = tuple[AclBinding, Refusal | None]
"""An entry that a filter matched; the Refusal if it could not be removed."""


class AclStore:
    """Call `load` before the broker accepts clients, then `run`."""

    def __init__(self, tree: Tree, index: AclIndex, clock: Clock, *, timeout_s: float) -> None:
        """`timeout_s`: how long a client's change may wait for the tree."""
        self.index = index
        self._tree = tree
        self._clock = clock
        self._timeout_s = timeout_s
        # Reads and writes exclude each other: otherwise an old read could undo a newer write in the index.
        self._lock = trio.Lock()
        self._randomness = random.Random()
        self._watched: set[str] = set()
        self._seen: dict[str, int] = {}
        """Paths of announcements, and when this broker first saw them (ms)."""
        self._session_count = 1
        self._loaded_session = 0
        self._changed = trio.Event()
        tree.add_session_listener(self._on_session)

    # Reading

    async def load(self) -> None:
        """Reads all entries. Raises BadNode if a node cannot be read: an entry of it may deny something."""
        with _without_collections():
            await retry_until_connected(self._load)

    async def _load(self) -> None:
        for path in acl_znodes.ACL_PATHS:
            await ensure_path(self._tree, path)
        await self._catch_up(is_strict=True)

    async def run(self) -> None:
        """Follows the changes of other brokers."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            try:
                await retry_until_connected(self._catch_up)
            except (TreeError, StorageFailure) as failure:
                logger.error("Could not read ACLs; the known ones stay in force: %r", failure)
                await trio.sleep(_FAILURE_SECONDS)
                self._changed.set()

    def _on_session(self, state: SessionState) -> None:
        self._watched.clear()
        if state is SessionState.CONNECTED:
            # Announcements may have come and gone while the session was away.
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

    async def _catch_up(self, *, is_strict: bool = False) -> None:
        """Reads the nodes that were announced as changed, or all. The watches are set before the nodes are read."""
        async with self._lock:
            session = self._session_count
            announced, patterns = await self._read_announcements()
            if self._loaded_session != session:
                patterns = await self._all_patterns()
            await self._refresh(patterns, is_strict=is_strict)
            self._loaded_session = session
            now_ms = self._clock.now_ms()
            self._seen = {path: self._seen.get(path, now_ms) for path in announced}
            await self._delete_old(now_ms)

    async def _read_announcements(self) -> tuple[list[str], list[ResourcePattern]]:
        """Returns the paths of all announcements, and the patterns of those that were not seen before."""
        announced: list[str] = []
        patterns: dict[ResourcePattern, None] = {}
        for pattern_type, parent in acl_znodes.CHANGES.items():
            paths = [f"{parent}/{name}" for name in await self._tree.children(parent, self._watch(parent))]
            announced += paths
            unseen = [path for path in paths if path not in self._seen]
            for path, node in zip(unseen, await self._tree.get_many(unseen), strict=True):
                pattern = None if node is None else acl_znodes.decode_change(pattern_type, node.data)
                if pattern is not None:
                    patterns[pattern] = None
                elif node is not None:
                    logger.error("Ignored the announcement %s: it names no resource", path)
        return announced, list(patterns)

    async def _all_patterns(self) -> list[ResourcePattern]:
        """Returns the patterns in the tree, and those that only the index has."""
        patterns = dict.fromkeys(self.index.patterns())
        for (kind, pattern_type), parent in acl_znodes.TYPE_PATHS.items():
            for name in await self._tree.children(parent):
                patterns[ResourcePattern(kind, name, pattern_type)] = None
        return list(patterns)

    async def _refresh(self, patterns: Sequence[ResourcePattern], *, is_strict: bool) -> None:
        nodes = await self._tree.get_many([acl_znodes.entries_path(pattern) for pattern in patterns])
        changed: dict[ResourcePattern, _Entries] = {}
        time_slice = TimeSlice(self._clock)
        for pattern, node in zip(patterns, nodes, strict=True):
            try:
                entries = _entries_of(pattern, node)
            except BadNode as failure:
                if is_strict:
                    raise
                logger.error("Kept the known ACLs of %s: %s", pattern, failure)
                continue
            if entries != self.index.entries(pattern):
                changed[pattern] = entries
            await time_slice.checkpoint_if_over()
        self.index.replace(changed)

    async def _delete_old(self, now_ms: int) -> None:
        for path in [path for path, seen_ms in self._seen.items() if now_ms - seen_ms > _EXPIRATION_MS]:
            with suppress(NoNode):  # another broker was quicker
                await self._tree.delete(path)
            del self._seen[path]

    # Writing

    async def add(self, bindings: Sequence[AclBinding]) -> list[Refusal | None]:
        """Adds entries. Returns an outcome for each, in order; None if it was added, or was there already."""
        added: dict[ResourcePattern, set[AclEntry]] = {}
        for binding in bindings:
            added.setdefault(binding.pattern, set()).add(binding.entry)
        outcomes: dict[ResourcePattern, Refusal | None] = {}
        for pattern, entries in added.items():
            outcomes[pattern] = await self._update(pattern, entries.union)
        return [outcomes[binding.pattern] for binding in bindings]

    async def remove(self, filters: Sequence[AclFilter]) -> list[list[RemovedAcl]]:
        """Removes the entries that match. Returns them for each filter; the first filter that matches gets an entry."""
        removed: list[list[RemovedAcl]] = [[] for _ in filters]
        numbers: dict[AclFilter, int] = {}
        for number, one in enumerate(filters):
            numbers.setdefault(one, number)
        time_slice = TimeSlice(self._clock)
        for pattern in self.index.patterns():
            await time_slice.checkpoint_if_over()
            matching = []
            for one in numbers:
                if one.matches_pattern(pattern):
                    matching.append(one)
                await time_slice.checkpoint_if_over()
            if matching:
                for one, outcomes in (await self._remove_from(pattern, matching, time_slice)).items():
                    removed[numbers[one]] += outcomes
        return removed

    async def _remove_from(
        self, pattern: ResourcePattern, filters: Sequence[AclFilter], time_slice: TimeSlice
    ) -> dict[AclFilter, list[RemovedAcl]]:
        """Removes the entries of one pattern. Returns them by the first of the filters that matches.

        What matches the known entries is found in slices: an entry times a filter may be many.
        """
        first: dict[AclEntry, AclFilter | None] = {}
        for entry in self.index.entries(pattern):
            for one in filters:
                await time_slice.checkpoint_if_over()
                if one.matches_entry(entry):
                    first[entry] = one
                    break
            else:
                first[entry] = None
        if not any(first.values()):
            return {}
        found: dict[AclEntry, AclFilter] = {}

        def without_matching(entries: _Entries) -> Iterable[AclEntry]:
            found.clear()
            for entry in entries:
                one = first[entry] if entry in first else _first_match(filters, entry)
                if one is not None:
                    found[entry] = one
            return entries.difference(found)

        refusal = await self._update(pattern, without_matching)
        removed: dict[AclFilter, list[RemovedAcl]] = {}
        for entry, one in found.items():
            removed.setdefault(one, []).append((AclBinding(pattern, entry), refusal))
        return removed

    async def _update(
        self, pattern: ResourcePattern, change: Callable[[_Entries], Iterable[AclEntry]]
    ) -> Refusal | None:
        """Replaces the entries of a pattern. Returns the Refusal if that failed."""
        try:
            async with self._writing():
                for _ in range(_ATTEMPTS):
                    if await self._try_update(pattern, change):
                        return None
                    await trio.sleep(_RETRY_SECONDS + self._randomness.random() * _RETRY_JITTER_SECONDS)
        except Refusal as refusal:
            return refusal
        text = f"Failed to update ACLs for {pattern} after trying a maximum of {_ATTEMPTS - 1} times"
        return Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, text)

    async def _try_update(self, pattern: ResourcePattern, change: Callable[[_Entries], Iterable[AclEntry]]) -> bool:
        """Returns False if another broker has changed the node since it was read."""
        path = acl_znodes.entries_path(pattern)
        (node,) = await self._tree.get_many([path])
        before = _entries_of(pattern, node)
        after = frozenset(change(before))
        if after != before:
            announcement = Create(acl_znodes.change_path(pattern), acl_znodes.encode_change(pattern), sequential=True)
            try:
                await self._tree.multi([_write(path, node, after), announcement])
            except (BadVersion, NodeExists, NoNode):
                return False
        self.index.replace({pattern: after})
        return True

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        """Turns failures of the tree into a Refusal."""
        try:
            with trio.fail_after(self._timeout_s):
                async with self._lock:
                    yield
        except (ConnectionLost, SessionLost, trio.TooSlowError) as failure:
            raise Refusal(ErrorCode.REQUEST_TIMED_OUT, "The metadata store did not answer.") from failure
        except InvalidPath as failure:
            raise Refusal(ErrorCode.INVALID_REQUEST, "Failed to create ACL") from failure
        except NodeTooLarge as failure:
            raise Refusal(ErrorCode.INVALID_REQUEST, "The resource has too many ACLs") from failure
        except BadNode as failure:
            raise Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, str(failure)) from failure
        except StorageFailure as failure:
            raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(failure)) from failure


@contextmanager
def _without_collections() -> Iterator[None]:
    """Puts off garbage collections: a load creates many objects and no garbage, and they would double its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _first_match(filters: Iterable[AclFilter], entry: AclEntry) -> AclFilter | None:
    return next((one for one in filters if one.matches_entry(entry)), None)


def _entries_of(pattern: ResourcePattern, node: Node | None) -> _Entries:
    return frozenset() if node is None else acl_znodes.decode_entries(pattern, node.data)


def _write(path: str, node: Node | None, entries: _Entries) -> TreeOperation:
    if node is None:
        return Create(path, acl_znodes.encode_entries(entries))
    if not entries:
        return Delete(path, node.stat.version)
    return SetData(path, acl_znodes.encode_entries(entries), node.stat.version)
