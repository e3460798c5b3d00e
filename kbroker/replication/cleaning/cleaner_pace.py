"""Pace of a compacting thread: pauses for the event loop, and log.cleaner.io.max.bytes.per.second."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from kbroker.clock import Clock
from kbroker.thread_pace import ThreadPace

__all__ = ["CleanerPace", "IoThrottle"]

_MAX_PAUSE_SECONDS: Final = 0.3
_SECONDS_BETWEEN_REPORTS: Final = 0.01
_MAX_BYTES_BETWEEN_REPORTS: Final = 8 << 20


class IoThrottle:
    """The rate of all workers of the log cleaner together. Used by several threads."""

    def __init__(self, clock: Clock, bytes_per_second: Callable[[], float]) -> None:
        self._monotonic = clock.monotonic
        self._bytes_per_second = bytes_per_second
        self._lock = threading.Lock()
        self._window_start = 0.0
        self._window_bytes = 0

    def add(self, size: int) -> None:
        """Counts bytes that were read or written."""
        with self._lock:
            now = self._monotonic()
            if now - self._window_start > 1.0 and self.seconds_left() <= 0:
                self._window_start, self._window_bytes = now, 0
            self._window_bytes += size

    def seconds_left(self) -> float:
        """Returns how long to wait before the next read or write."""
        rate = max(self._bytes_per_second(), 1.0)
        return self._window_start + self._window_bytes / rate - self._monotonic()

    def bytes_between_reports(self) -> int:
        """Returns how much may be read and written before it is counted: few bytes at a low rate."""
        return int(min(self._bytes_per_second() * _SECONDS_BETWEEN_REPORTS, _MAX_BYTES_BETWEEN_REPORTS))


class CleanerPace:
    def __init__(self, clock: Clock, throttle: IoThrottle) -> None:
        self._pace = ThreadPace(clock)
        self._throttle = throttle
        self.stop = self._pace.stop
        self.tick = self._pace.tick
        self.bytes_between_reports = throttle.bytes_between_reports

    def took(self, size: int) -> None:
        self._throttle.add(size)
        while (left := self._throttle.seconds_left()) > 0:
            self._pace.pause(min(left, _MAX_PAUSE_SECONDS))  # in steps, since the config may change
