"""The only module that asks the operating system for the time; everything else is handed a Clock."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch: what record timestamps are made of."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow: what deadlines are made of."""
        ...


class SystemClock:
    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
