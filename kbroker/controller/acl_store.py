"""ACLs in the metadata tree: writes entries, announces each change, and follows the changes of other brokers.

Any broker may write. A write expects the version of the node that it has read; if another broker was quicker, the node
is read again. The broker's own index has a change as soon as the tree has accepted it; the other brokers read the
changed node when they see the announcement. While the tree does not answer, the known entries stay in force.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from kbroker.clock import Clock
from kbroker.controller.announcements import ATTEMPTS, AnnouncedChanges, Announcement
from kbroker.controller.trees import acl_znodes
from kbroker.controller.trees.tree import (
    BadVersion,
    Create,
    Delete,
    InvalidPath,
    Node,
    NodeExists,
    NodeTooLarge,
    NoNode,
    SetData,
    Tree,
    TreeOperation,
)
from kbroker.controller.trees.znodes import BadNode
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.security.acls.entries import AclBinding, AclEntry, ResourcePattern
from kbroker.security.acls.filters import AclFilter
from kbroker.security.acls.index import AclIndex
from kbroker.time_slice import TimeSlice

__all__ = ["AclStore", "RemovedAcl"]

logger = logging.getLogger(__name__)

_PATTERN_TYPES: Final = {parent: pattern_type for pattern_type, parent in acl_znodes.CHANGES.items()}

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
        self._changes = AnnouncedChanges(tree, clock, list(_PATTERN_TYPES), about="ACLs", timeout_s=timeout_s)

    # Reading

    async def load(self) -> None:
        """Reads all entries. Raises BadNode if a node cannot be read: an entry of it may deny something."""
        with _without_collections():
            await self._changes.load(acl_znodes.ACL_PATHS, partial(self._read, is_strict=True))

    async def run(self) -> None:
        """Follows the changes of other brokers."""
        await self._changes.run(self._read)

    async def _read(self, announced: Sequence[Announcement] | None, *, is_strict: bool = False) -> None:
        patterns = await self._all_patterns() if announced is None else _patterns(announced)
        await self._refresh(patterns, is_strict=is_strict)

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
                logger.error("Kept the known ACLs of %s because the znode is not valid: %s", pattern, failure)
                continue
            if entries != self.index.entries(pattern):
                changed[pattern] = entries
            await time_slice.checkpoint_if_over()
        self.index.replace(changed)

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
            if await self._changes.write(lambda: self._try_update(pattern, change)):
                return None
        except Refusal as refusal:
            return refusal
        except InvalidPath:
            return Refusal(ErrorCode.INVALID_REQUEST, "Failed to create ACL")
        except NodeTooLarge:
            return Refusal(ErrorCode.INVALID_REQUEST, "The resource has too many ACLs")
        text = f"Failed to update ACLs for {pattern} after trying a maximum of {ATTEMPTS - 1} times"
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


def _patterns(announced: Sequence[Announcement]) -> list[ResourcePattern]:
    patterns: dict[ResourcePattern, None] = {}
    for parent, path, data in announced:
        pattern = acl_znodes.decode_change(_PATTERN_TYPES[parent], data)
        if pattern is None:
            logger.error("Ignored the announcement %s: it names no resource", path)
        else:
            patterns[pattern] = None
    return list(patterns)


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
