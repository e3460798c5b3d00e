"""Queue of tree events that a cluster member has still to process, one at a time.

An event names a part of the tree to read, without its changes. So an event that is queued already is not queued again.
"""

from __future__ import annotations

from enum import Enum

import trio

__all__ = ["Event", "EventQueue"]


class Event(Enum):
    SESSION = "the session is new, or was suspended"
    CONTROLLER = "the controller's node changed"
    CONFIGS = "configs were changed"
    BROKERS = "a broker registered or left"
    TOPICS = "a topic was added or removed, or its node was written"
    LOG_DIRS = "a data directory of a broker failed"
    OFFLINE_REPLICAS = "a broker reported replicas in failed data directories"
    DELETIONS = "a topic was marked for deletion"
    ELECTIONS = "the configs of a topic without a leader changed"
    REASSIGNMENTS = "all target replicas of a moving partition are in sync"
    ADMIN_REQUESTS = "a tool wrote a request below /admin"
    REBALANCE = "time to check for leaders that are not the preferred replica"
    CONFLICT = "another writer changed a node"


class EventQueue:
    def __init__(self) -> None:
        self._waiting: dict[Event, None] = {}
        self._arrival = trio.Event()

    def put(self, event: Event) -> None:
        self._waiting[event] = None
        self._arrival.set()

    async def wait_next(self) -> Event:
        while not self._waiting:
            self._arrival = trio.Event()
            await self._arrival.wait()
        event = next(iter(self._waiting))
        del self._waiting[event]
        return event
