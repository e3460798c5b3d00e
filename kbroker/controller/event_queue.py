"""What has happened in the tree and is still to be looked at: one queue, from which one thing is taken at a time.

An event says where to look, not what is to be seen there, so one that waits already is not queued twice.
"""

from __future__ import annotations

from enum import Enum

import trio

__all__ = ["Event", "EventQueue"]


class Event(Enum):
    SESSION = "the session is new, or was out of touch"
    CONTROLLER = "the controller's node"
    CONFIGS = "announcements of configs"
    BROKERS = "the brokers' nodes"
    TOPICS = "the topics' nodes"
    DELETIONS = "topics to be deleted"
    BALANCE = "time to look who leads too much"
    CONFLICT = "a state that somebody else wrote"


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
