"""Limit of the bytes that all connections hold together (queued.max.request.bytes), with queues of waiters. Pure.

A frame holds memory in one of three kinds (`protocol/framing.py`), and each has its own bound:

    GROWING  at most half of the limit. If it is used up, frames wait for WHOLE
    WHOLE    all but the reserve. Granted beyond the limit if only GROWING frames hold memory: one of them must complete
    SMALL    the whole limit, and the reserve (1/16 of the limit) even if responses that are not read use up the rest

So unfinished large frames block neither each other for ever nor small frames. Waiters of one kind are served in order.
"""

from __future__ import annotations

from typing import Protocol

from kbroker.protocol.framing import GROWING, SMALL

__all__ = ["MemoryBudget", "MemoryWaiter"]

_RESERVE_DIVISOR = 16


class MemoryWaiter(Protocol):
    def on_memory_granted(self, size: int, kind: int) -> None: ...


class MemoryBudget:
    __slots__ = ("_growing", "_queue", "_reserve", "_small", "_small_queue", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._reserve = limit // _RESERVE_DIVISOR
        self._growing = 0
        self._small = 0
        self._queue: dict[MemoryWaiter, tuple[int, int, float]] = {}
        self._small_queue: dict[MemoryWaiter, tuple[int, int, float]] = {}

    def is_tight(self) -> bool:
        return bool(self._queue or self._small_queue) or 2 * self.used > self.limit

    def is_exhausted(self) -> bool:
        return self.used >= self.limit

    def try_reserve(self, size: int, kind: int) -> bool:
        """Reserves `size` bytes. Returns False if they do not fit, or if other waiters are queued."""
        if self._queue_of(kind) or not self._has_room(size, kind):
            return False
        self._add(size, kind)
        return True

    def change_kind(self, size: int, old: int, new: int) -> None:
        self._add(-size, old)
        self._add(size, new)

    def charge(self, size: int) -> None:
        """Adds bytes that cannot be refused: responses that exist already. A negative size releases bytes."""
        self.used += size
        if size < 0:
            self._serve()

    def release(self, size: int, kind: int) -> None:
        self._add(-size, kind)
        self._serve()

    def enqueue(self, waiter: MemoryWaiter, size: int, kind: int, now: float) -> None:
        """Queues the waiter: its `on_memory_granted` is called once `size` bytes are reserved for it."""
        self._queue_of(kind)[waiter] = (size, kind, now)
        self._serve()

    def leave(self, waiter: MemoryWaiter) -> None:
        if self._queue.pop(waiter, None) is not None or self._small_queue.pop(waiter, None) is not None:
            self._serve()

    def longest_wait(self, now: float) -> float | None:
        """Returns how many seconds the first waiter has waited; None if there is none."""
        waits = [now - since for queue in (self._queue, self._small_queue) for _, _, since in _first(queue)]
        return max(waits, default=None)

    def _queue_of(self, kind: int) -> dict[MemoryWaiter, tuple[int, int, float]]:
        return self._small_queue if kind == SMALL else self._queue

    def _has_room(self, size: int, kind: int) -> bool:
        after = self.used + size
        if kind == SMALL:
            return after <= self.limit or self._small + size <= self._reserve or self.used <= 0
        if kind == GROWING:
            return 2 * (self._growing + size) <= self.limit and after <= self.limit - self._reserve
        # A frame larger than the whole budget could never be read without the second condition.
        return after <= self.limit - self._reserve or self.used <= self._growing

    def _add(self, size: int, kind: int) -> None:
        self.used += size
        if kind == SMALL:
            self._small += size
        elif kind == GROWING:
            self._growing += size

    def _serve(self) -> None:
        for queue in (self._small_queue, self._queue):
            while queue:
                waiter, (size, kind, _) = next(iter(queue.items()))
                if not self._has_room(size, kind):
                    break
                del queue[waiter]
                self._add(size, kind)
                waiter.on_memory_granted(size, kind)


def _first(queue: dict[MemoryWaiter, tuple[int, int, float]]) -> list[tuple[int, int, float]]:
    return [next(iter(queue.values()))] if queue else []
