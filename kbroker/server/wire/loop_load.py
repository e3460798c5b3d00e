"""Load of the event loop, measured once for each sweep of the connections: how late a task wakes up, and idle time."""

from __future__ import annotations

import math
from typing import Final

from kbroker.histogram import Histogram

__all__ = ["LoopLoad"]

_WINDOW_SECONDS: Final = 60.0


class LoopLoad:
    __slots__ = ("_at", "_busy_ms", "idle_share", "lag")

    def __init__(self, now: float) -> None:
        self.lag = Histogram()
        """Time between the end of a sleep and the moment when its task runs."""
        self.idle_share = 1.0
        """Share of the time in which the loop handled no requests: an exponential average over about a minute."""
        self._at = now
        self._busy_ms = 0.0

    def on_sweep(self, now: float, busy_ms: float) -> None:
        """Updates the idle share. `busy_ms`: time in which the loop has handled requests, since the start."""
        seconds = now - self._at
        if seconds <= 0:
            return
        idle = min(max(1 - (busy_ms - self._busy_ms) / (1000 * seconds), 0.0), 1.0)
        self.idle_share += (idle - self.idle_share) * (1 - math.exp(-seconds / _WINDOW_SECONDS))
        self._at, self._busy_ms = now, busy_ms
