"""Task that fsyncs logs in a thread, as a group commit: each round flushes all logs requested during the last one.

A failed fsync is never retried: the kernel may have dropped the dirty pages, and a second fsync would then succeed.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import trio

from kbroker.clock import Clock, SystemClock
from kbroker.errors import StorageFailure
from kbroker.histogram import Histogram
from kbroker.log.files.flush_job import FlushJob

__all__ = ["Flushable", "Flusher"]


class Flushable(Protocol):
    def begin_flush(self) -> FlushJob | None: ...

    def end_flush(self, job: FlushJob, failure: StorageFailure | None, now_ms: int) -> None: ...


class _Flush(NamedTuple):
    failure: StorageFailure | None
    milliseconds: float


class Flusher:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.flush_times = Histogram()
        self._due: dict[Flushable, None] = {}
        self._is_due = trio.Event()
        self._round = trio.Event()

    def request(self, log: Flushable) -> None:
        self._due[log] = None
        self._is_due.set()

    async def run(self) -> None:
        while True:
            await self._is_due.wait()
            self._is_due = trio.Event()
            due, self._due = self._due, {}
            started = [(log, job) for log in due if (job := log.begin_flush()) is not None]
            flushes = await trio.to_thread.run_sync(_run_all, [job for _, job in started])
            now_ms = self._clock.now_ms()
            for (log, job), flush in zip(started, flushes, strict=True):
                self.flush_times.observe(flush.milliseconds)
                log.end_flush(job, flush.failure, now_ms)
            self._round.set()
            self._round = trio.Event()

    async def wait_round(self) -> None:
        """Waits until the current round has ended, whether its flushes succeeded or not."""
        await self._round.wait()


def _run_all(jobs: list[FlushJob]) -> list[_Flush]:
    flushes: list[_Flush] = []
    clock = SystemClock()  # the flusher's own clock belongs to the event loop, and this is a thread
    for job in jobs:
        began, failure = clock.monotonic(), None
        try:
            job.run()
        except StorageFailure as problem:
            failure = problem
        flushes.append(_Flush(failure, 1000 * (clock.monotonic() - began)))
    return flushes
