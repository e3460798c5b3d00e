"""Watches of the sessions of an embedded tree. A watch fires once, in trio's thread, in the order of the writes."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from kbroker.controller.trees.tree import Watch, WatchEvent, WatchKind

__all__ = ["WatchTable"]


class WatchTable:
    """Created in trio's thread; used in a worker thread, by one call at a time."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._data_watches: dict[str, list[tuple[int, Watch]]] = {}
        self._child_watches: dict[str, list[tuple[int, Watch]]] = {}

    def add_data_watch(self, session_id: int, path: str, watch: Watch | None) -> None:
        if watch is not None:
            self._data_watches.setdefault(path, []).append((session_id, watch))

    def add_child_watch(self, session_id: int, path: str, watch: Watch | None) -> None:
        if watch is not None:
            self._child_watches.setdefault(path, []).append((session_id, watch))

    def remove_session(self, session_id: int) -> None:
        for watches in (self._data_watches, self._child_watches):
            for path, registered in list(watches.items()):
                watches[path] = [entry for entry in registered if entry[0] != session_id]

    def fire(self, events: Sequence[WatchEvent]) -> None:
        for event in events:
            fired: list[tuple[int, Watch]] = []
            if event.kind is not WatchKind.CHILDREN_CHANGED:
                fired += self._data_watches.pop(event.path, ())
            if event.kind in (WatchKind.CHILDREN_CHANGED, WatchKind.DELETED):
                fired += self._child_watches.pop(event.path, ())
            for _session_id, watch in fired:
                # Queued before the answer of the write, so the callback runs before any later read returns.
                self._token.run_sync_soon(watch, event)
