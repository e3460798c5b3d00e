"""Timeouts of all waiting requests in one heap, served by one task.

A heap entry costs 1 µs; a task with an event and a timeout for each waiting request would cost 28 µs. The heap drops
cancelled entries when they are more than half of it. Many callbacks that are due at once are called in slices of 2 ms.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable

import trio

__all__ = ["Deadline", "Deadlines"]

logger = logging.getLogger(__name__)


# Few entries are kept until they are due: a smaller heap would be rebuilt too often.
_FEW_CANCELLED = 64
_SLICE_SECONDS = 0.002
_CALLS_PER_CLOCK_READ = 4


class Deadline:
    """Entry of the heap. `cancel` drops the callback; the heap drops the entry later."""

    __slots__ = ("callback", "heap")

    def __init__(self, callback: Callable[[], None], heap: Deadlines | None = None) -> None:
        self.callback: Callable[[], None] | None = callback
        self.heap = heap  # None once it is due

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            if self.heap is not None:
                self.heap.on_cancelled()


class Deadlines:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Deadline]] = []
        self._cancelled = 0  # entries of the heap
        self._order = itertools.count()
        self._scope: trio.CancelScope | None = None

    def __len__(self) -> int:
        """Returns the number of entries in the heap, with cancelled ones that it has not dropped yet."""
        return len(self._heap)

    def add(self, seconds: float, callback: Callable[[], None]) -> Deadline:
        """Calls `callback` after `seconds`, unless the deadline is cancelled."""
        deadline = Deadline(callback, self)
        at = trio.current_time() + seconds
        heapq.heappush(self._heap, (at, next(self._order), deadline))
        if self._scope is not None and at < self._scope.deadline:
            self._scope.deadline = at
        return deadline

    def on_cancelled(self) -> None:
        """Counts a cancelled entry."""
        self._cancelled += 1
        self._drop_cancelled()

    def _drop_cancelled(self) -> None:
        """Rebuilds the heap if more than half of it is cancelled: 0.2 µs for each entry."""
        if self._cancelled > _FEW_CANCELLED and 2 * self._cancelled > len(self._heap):
            # In place: `_call_due` looks at the heap.
            self._heap[:] = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def now(self) -> float:
        return trio.current_time()

    async def run(self) -> None:
        """Calls due callbacks until it is cancelled."""
        while True:
            with trio.CancelScope() as self._scope:
                self._scope.deadline = self._heap[0][0] if self._heap else float("inf")
                await trio.sleep_forever()
            self._call_due()
            self._drop_cancelled()  # those that were less than half of the heap before

    def _call_due(self) -> None:
        """Calls due callbacks in the order of their times, for one slice. `run` comes back for the others."""
        heap = self._heap
        now = trio.current_time()
        end = now + _SLICE_SECONDS
        calls = 0
        while heap and heap[0][0] <= now:
            deadline = heapq.heappop(heap)[2]
            deadline.heap = None
            callback = deadline.callback
            if callback is None:
                self._cancelled -= 1
                continue
            try:
                callback()
            except Exception:
                logger.exception("Unexpected error in the callback of a deadline")
            calls += 1
            if calls % _CALLS_PER_CLOCK_READ == 0 and trio.current_time() >= end:
                return
