"""How many bytes all connections together may hold (queued.max.request.bytes), and who is next when there is no room.

Pure. Whoever was refused may stand in line; it is served in order, so that a large frame is not overtaken forever.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["MemoryBudget", "MemoryWaiter"]


class MemoryWaiter(Protocol):
    def on_memory_granted(self, size: int) -> None: ...


class MemoryBudget:
    __slots__ = ("_line", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._line: dict[MemoryWaiter, tuple[int, float]] = {}

    def is_tight(self) -> bool:
        return bool(self._line) or 2 * self.used > self.limit

    def is_exhausted(self) -> bool:
        return self.used >= self.limit

    def try_reserve(self, size: int) -> bool:
        """Refused also while others stand in line."""
        if self._line or not self._has_room(size):
            return False
        self.used += size
        return True

    def charge(self, size: int) -> None:
        """Take, or with a negative size give back, what cannot be refused: responses that exist already."""
        if size < 0:
            self.release(-size)
        else:
            self.used += size

    def release(self, size: int) -> None:
        self.used -= size
        self._serve()

    def wait(self, waiter: MemoryWaiter, size: int, now: float) -> None:
        """Stand in line: `on_memory_granted` is called once the bytes are reserved."""
        self._line[waiter] = (size, now)
        self._serve()

    def leave(self, waiter: MemoryWaiter) -> None:
        if self._line.pop(waiter, None) is not None:
            self._serve()

    def longest_wait(self, now: float) -> float:
        """Seconds that the first in line has waited; 0 when there is no line."""
        for _, since in self._line.values():
            return now - since
        return 0.0

    def _has_room(self, size: int) -> bool:
        # An empty budget grants anything: a frame larger than the whole budget must pass alone, or it never would.
        return self.used + size <= self.limit or self.used <= 0

    def _serve(self) -> None:
        while self._line:
            waiter, (size, _) = next(iter(self._line.items()))
            if not self._has_room(size):
                return
            del self._line[waiter]
            self.used += size
            waiter.on_memory_granted(size)
