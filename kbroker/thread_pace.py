"""Pace of a thread beside the event loop: short pauses that release the GIL.

The thread works for 0.3 ms at a time, so the event loop never waits longer than that for the GIL. While the loop is
busy, the thread makes little progress: a thread that holds the GIL without pauses keeps it for 5 ms.
"""

from __future__ import annotations

import threading
from typing import Final

from kbroker.clock import Clock

__all__ = ["ThreadPace", "ThreadStopped"]

_WORK_SECONDS: Final = 0.0003
_PAUSE_SECONDS: Final = 0.00005  # about 0.1 ms in practice: enough for another thread to take the GIL


class ThreadStopped(Exception):
    """The work is not wanted any more: the thread ends it, and its result is discarded."""


class ThreadPace:
    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._slice_end = 0.0
        self._stop = threading.Lock()  # acquiring it with a timeout is the cheapest pause that can be interrupted
        self._stop.acquire()

    def stop(self) -> None:
        """Makes the thread raise ThreadStopped at its next pause. Called once, from the event loop."""
        self._stop.release()

    def tick(self) -> None:
        """Pauses if the thread has worked long enough. Called every few records."""
        if self._monotonic() >= self._slice_end:
            self.pause(_PAUSE_SECONDS)
            self._slice_end = self._monotonic() + _WORK_SECONDS

    def pause(self, seconds: float) -> None:
        if self._stop.acquire(timeout=seconds):
            self._stop.release()
            raise ThreadStopped
