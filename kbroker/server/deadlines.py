"""Many deadlines, one task: what waits for a time puts itself on a heap, and one sweep calls it when that has come.

A task with an event and a timeout for each waiting request costs 28 µs; an entry here costs one.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable

import trio

__all__ = ["Deadline", "Deadlines"]

logger = logging.getLogger(__name__)


class Deadline:
    """Cancelling only forgets the callback; the entry leaves the heap when its time comes."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Deadlines:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Deadline]] = []
        self._order = itertools.count()
        self._scope: trio.CancelScope | None = None

    def add(self, seconds: float, callback: Callable[[], None]) -> Deadline:
        deadline = Deadline(callback)
        at = trio.current_time() + seconds
        heapq.heappush(self._heap, (at, next(self._order), deadline))
        if self._scope is not None and at < self._scope.deadline:
            self._scope.deadline = at
        return deadline

    def now(self) -> float:
        return trio.current_time()

    async def run(self) -> None:
        """Calls what is due, for ever."""
        while True:
            with trio.CancelScope() as self._scope:
                self._scope.deadline = self._heap[0][0] if self._heap else float("inf")
                await trio.sleep_forever()
            self._call_due()

    def _call_due(self) -> None:
        heap = self._heap
        now = trio.current_time()
        while heap and heap[0][0] <= now:
            callback = heapq.heappop(heap)[2].callback
            if callback is not None:
                try:
                    callback()
                except Exception:
                    logger.exception("a deadline's callback failed")
