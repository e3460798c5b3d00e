"""The only module that reads the system's clocks. All other code receives a Clock."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    def now_ms(self) -> int:
        """Returns the wall clock time in ms since the epoch. Used for record timestamps."""
        ...

    def monotonic(self) -> float:
        """Returns the monotonic clock in seconds. Used for deadlines."""
        ...


class SystemClock:
    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)  # the built-in itself: a method around it would cost three times as much
