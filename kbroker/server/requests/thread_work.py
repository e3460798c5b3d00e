"""Long work on single requests in threads, beside the event loop: checks of large batches, decoding, encoding.

A connection whose request is in a thread is held: its later requests wait, as in Kafka. Few threads work at a time, so
the decompressed records of few batches are in memory at a time. While one works, threads that want the GIL get it after
0.5 ms instead of 5 ms: a request on the loop releases it several times, in every call of the system.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import trio
from trio.to_thread import run_sync

from kbroker.clock import Clock
from kbroker.thread_pace import ThreadPace

__all__ = ["MAX_THREADS", "ThreadWork"]

MAX_THREADS: Final = 2
_SWITCH_SECONDS: Final = 0.0005

T = TypeVar("T")


class ThreadWork:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limiter = trio.CapacityLimiter(MAX_THREADS)
        self._has_freed = False

    def pop_has_freed(self) -> bool:
        """Whether threads have ended since the last call, and none works now: they have freed much memory."""
        if not self._has_freed or self._limiter.borrowed_tokens:
            return False
        self._has_freed = False
        return True

    async def run(self, work: Callable[..., T]) -> T:
        """Calls `work` in a thread and returns its result. `work` must call its argument `pause` every few 0.1 ms.

        If the broker stops meanwhile, the thread is told to stop, and the caller is cancelled without waiting for it.
        """
        pace = ThreadPace(self._clock)
        self._has_freed = True
        try:
            return await run_sync(partial(_call, work, pace), abandon_on_cancel=True, limiter=self._limiter)
        except trio.Cancelled:
            pace.stop()
            raise


def _call(work: Callable[..., T], pace: ThreadPace) -> T:
    with _short_switches:
        return work(pause=pace.tick)


class _ShortSwitches:
    """Shortens the switch interval of the interpreter while at least one thread is within its context."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._usual_seconds = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._threads:
                self._usual_seconds = sys.getswitchinterval()
                sys.setswitchinterval(_SWITCH_SECONDS)
            self._threads += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._threads -= 1
            if not self._threads:
                sys.setswitchinterval(self._usual_seconds)


_short_switches = _ShortSwitches()
