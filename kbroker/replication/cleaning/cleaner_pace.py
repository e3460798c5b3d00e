"""Pace of the compacting thread: pauses for the event loop, and log.cleaner.io.max.bytes.per.second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kbroker.clock import Clock
from kbroker.thread_pace import ThreadPace

__all__ = ["CleanerPace"]

_MAX_PAUSE_SECONDS: Final = 0.3


class CleanerPace:
    def __init__(self, clock: Clock, bytes_per_second: Callable[[], float]) -> None:
        self._pace = ThreadPace(clock)
        self.stop = self._pace.stop
        self.tick = self._pace.tick
        self._monotonic = clock.monotonic
        self._bytes_per_second = bytes_per_second
        self._window_start = 0.0
        self._window_bytes = 0

    def took(self, size: int) -> None:
        now = self._monotonic()
        if now - self._window_start > 1.0:
            self._window_start, self._window_bytes = now, 0
        self._window_bytes += size
        while (left := self._seconds_left()) > 0:
            self._pace.pause(min(left, _MAX_PAUSE_SECONDS))  # in steps, since the config may change

    def _seconds_left(self) -> float:
        rate = max(self._bytes_per_second(), 1.0)
        return self._window_start + self._window_bytes / rate - self._monotonic()
