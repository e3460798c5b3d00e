"""How fast the thread that compacts may go: it works for a moment, then lets go of the interpreter, so that the loop
never waits longer than that for its turn; and it keeps to log.cleaner.io.max.bytes.per.second.

While the loop is busy it hardly gets a turn, for nobody who holds the interpreter gives it away sooner than after 5 ms.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from kbroker.clock import Clock

__all__ = ["CleanerPace", "CompactionStopped"]

_WORK_SECONDS: Final = 0.0003
_REST_SECONDS: Final = 0.00005  # the kernel makes about 0.1 ms of it: enough for another thread to wake
_STEP_SECONDS: Final = 0.3


class CompactionStopped(Exception):
    """The broker stops: this round ends here, and nothing of it counts."""


class CleanerPace:
    def __init__(self, clock: Clock, bytes_per_second: Callable[[], float]) -> None:
        self._monotonic = clock.monotonic
        self._bytes_per_second = bytes_per_second
        self._slice_end = 0.0
        self._window_start = 0.0
        self._window_bytes = 0
        self._stop = threading.Lock()  # to acquire it with a timeout is the cheapest rest that can be ended
        self._stop.acquire()

    def stop(self) -> None:
        """From the loop. Once."""
        self._stop.release()

    def tick(self) -> None:
        if self._monotonic() >= self._slice_end:
            self._rest(_REST_SECONDS)
            self._slice_end = self._monotonic() + _WORK_SECONDS

    def took(self, size: int) -> None:
        now = self._monotonic()
        if now - self._window_start > 1.0:
            self._window_start, self._window_bytes = now, 0
        self._window_bytes += size
        while (left := self._seconds_left()) > 0:
            self._rest(min(left, _STEP_SECONDS))  # in steps, for the rate may change

    def _seconds_left(self) -> float:
        rate = max(self._bytes_per_second(), 1.0)
        return self._window_start + self._window_bytes / rate - self._monotonic()

    def _rest(self, seconds: float) -> None:
        if self._stop.acquire(timeout=seconds):
            self._stop.release()
            raise CompactionStopped
