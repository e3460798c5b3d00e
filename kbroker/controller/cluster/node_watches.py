"""Watches of a cluster member on the tree: each queues an event when it fires. At most one watch for each node."""

from __future__ import annotations

from kbroker.controller.cluster.event_queue import Event, EventQueue
from kbroker.controller.trees.tree import Watch, WatchEvent

__all__ = ["NodeWatches"]


class NodeWatches:
    def __init__(self, events: EventQueue) -> None:
        self._events = events
        self._armed: set[str] = set()

    def watch(self, path: str, event: Event) -> Watch | None:
        """Returns a watch to pass to the tree, or None if one is set already. It queues `event` when it fires.

        Without this check, each read of a node would leave one more watch in ZooKeeper.
        """
        if path in self._armed:
            return None
        self._armed.add(path)

        def on_watch(_event: WatchEvent) -> None:
            self._armed.discard(path)
            self._events.put(event)

        return on_watch

    def is_set(self, path: str) -> bool:
        return path in self._armed

    def forget(self, path: str) -> None:
        """Takes back a `watch` that the tree has not set, because the node does not exist."""
        self._armed.discard(path)

    def clear(self) -> None:
        """Forgets all watches: the tree drops them when its session is suspended or lost."""
        self._armed.clear()
