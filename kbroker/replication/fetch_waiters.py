"""Delayed fetches of consumers: those of one partition, and the task that wakes very many of them in slices of 2 ms.

A few waiters are notified within the run of the Produce that has made records visible. Many would keep the loop: the
partition then hands over all of them in one step, and `FetchWakeups` notifies one after the other.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from typing import Final, Protocol

import trio

from kbroker.clock import Clock
from kbroker.time_slice import TimeSlice

__all__ = ["MANY_WAITERS", "FetchWaiter", "FetchWaiters", "FetchWakeups", "QuietFollower"]

logger = logging.getLogger(__name__)

MANY_WAITERS: Final = 64


class FetchWaiter(Protocol):
    def on_visible(self, size: int) -> None:
        """Notifies the fetch that `size` more bytes can be read."""
        ...

    def finish(self) -> None:
        """Completes the fetch at once: the role has changed, or the replica is deleted."""
        ...


class QuietFollower(Protocol):
    """A follower that has all of one partition, as its leader's fetch sessions know it."""

    @property
    def waiter(self) -> FetchWaiter | None:
        """Returns the follower's delayed fetch."""
        ...

    def on_change(self, size: int) -> None:
        """Notes that the partition has changed, and notifies the delayed fetch if `size` more bytes can be read."""
        ...


class FetchWaiters:
    """The delayed fetches of one partition. Without `wakeups` all are notified at once."""

    __slots__ = ("_wakeups", "due", "waiting")

    def __init__(self, wakeups: FetchWakeups | None = None) -> None:
        self.waiting: set[FetchWaiter] = set()
        self.due: deque[_DueWaiters] = deque()
        """Sets of waiters that `wakeups` has to notify. Each waiter is in one of them or in `waiting`."""
        self._wakeups = wakeups

    def __len__(self) -> int:
        return len(self.waiting) + sum(len(due.waiters) for due in self.due)

    def __iter__(self) -> Iterator[FetchWaiter]:
        yield from self.waiting
        for due in self.due:
            yield from due.waiters

    def add(self, waiter: FetchWaiter) -> None:
        self.waiting.add(waiter)

    def discard(self, waiter: FetchWaiter) -> None:
        self.waiting.discard(waiter)
        for due in self.due:
            due.waiters.discard(waiter)

    def on_visible(self, size: int) -> None:
        """Notifies all waiters that `size` more bytes can be read: few of them now, many in later turns."""
        for due in self.due:
            due.size += size  # these waiters were not notified yet, and must count the new bytes too
        if len(self.waiting) > MANY_WAITERS and self._wakeups is not None:
            self._hand_over(_DueWaiters(self, self.waiting, size))
        else:
            for waiter in list(self.waiting):
                waiter.on_visible(size)

    def finish_all(self) -> None:
        """Completes all waiters: few of them now, many in later turns."""
        if len(self) > MANY_WAITERS and self._wakeups is not None:
            for due in self.due:
                due.is_final = True
            self._hand_over(_DueWaiters(self, self.waiting, 0, is_final=True))
        else:
            for waiter in list(self):
                waiter.finish()

    def _hand_over(self, due: _DueWaiters) -> None:
        assert self._wakeups is not None
        self.waiting = set()
        self.due.append(due)
        self._wakeups.add(due)


class _DueWaiters:
    """Waiters of one partition that are notified one after the other. `size`: bytes that have become visible."""

    __slots__ = ("_owner", "is_final", "size", "waiters")

    def __init__(self, owner: FetchWaiters, waiters: set[FetchWaiter], size: int, *, is_final: bool = False) -> None:
        self._owner = owner
        self.waiters = waiters
        self.size = size
        self.is_final = is_final

    def notify_next(self) -> bool:
        """Notifies one waiter. Returns False if none is left."""
        if not self.waiters:
            self._owner.due.remove(self)
            return False
        waiter = self.waiters.pop()
        if self.is_final:
            waiter.finish()
        else:
            # Before the call: a waiter that it completes discards itself, any other goes on waiting.
            self._owner.waiting.add(waiter)
            waiter.on_visible(self.size)
        return True


class FetchWakeups:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: deque[_DueWaiters] = deque()
        self._work = trio.Event()

    def add(self, due: _DueWaiters) -> None:
        self._due.append(due)
        self._work.set()

    async def run(self) -> None:
        """Notifies the waiters that are due until it is cancelled."""
        while True:
            await self._work.wait()
            self._work = trio.Event()  # before the loop: an `add` during its checkpoints sets the new event
            time_slice = TimeSlice(self._clock)
            while self._due:
                try:
                    if not self._due[0].notify_next():
                        self._due.popleft()
                except Exception:
                    logger.exception("Unexpected error waking a delayed fetch")
                await time_slice.checkpoint_if_over()
