"""Requests that have arrived in one round of the poll: their batches are written together, then all are answered.

A watcher calls `begin`, then every connection that is ready, then `end`. While the run is open, connections add
themselves, and Produce handlers add partitions with staged batches. `end` has five steps, in this order:

1. Write: each partition writes its staged batches with one call. The staged batches are views into the receive buffers.
2. Answer: each Produce request completes its slot. Only now, because an answer says that the records are in the log.
3. Flush the offsets that the run has committed, then wake the followers of what was written: each once.
4. For each connection: release its receive buffer, which no write needs any more, and send its answers in one call.
5. Measure: the time since `begin` counts for all requests of the run.

Any request but a Produce runs steps 1 to 3 first (`Dispatch.handle`): it must see the records of the requests before
it. The buffers stay until `end`.

`wire` may not import this module. It declares the part that connections use as the protocol `ConnectionRun`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kbroker.clock import Clock
from kbroker.histogram import bucket_of

if TYPE_CHECKING:
    from kbroker.replication.partition import Partition
    from kbroker.server.requests.request_times import RequestTally
    from kbroker.server.wire.connection import Connection

__all__ = ["Run", "StagedBatches", "StagedProduce"]

logger = logging.getLogger(__name__)

_COMPLETIONS_PER_RUN: Final = 64

StagedBatches = list[tuple["Partition", int, Any]]
"""Partition, last offset and response of each staged batch of one request."""


class StagedProduce(ABC):
    """Produce request whose batches are staged and not written yet."""

    __slots__ = ()

    @abstractmethod
    def on_written(self) -> None:
        """Answers the request. Each of its partitions has written its batches, or has failed to."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Answers UNKNOWN_SERVER_ERROR: `on_written` has raised."""


class Run:
    __slots__ = (
        "_clock",
        "_completions",
        "_connections",
        "_flushes",
        "_now_ms",
        "_wakeups",
        "began",
        "busy_ms",
        "is_open",
        "monotonic",
        "partitions",
        "produces",
        "tallies",
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now_ms = 0
        self._completions = 0
        self.monotonic = clock.monotonic
        self.is_open = False
        self.began: float = 0.0
        self._connections: list[Connection] = []
        self._flushes: list[Callable[[], None]] = []
        self._wakeups: list[Callable[[], None]] = []
        self.partitions: list[Partition] = []
        self.produces: list[StagedProduce] = []
        self.tallies: list[RequestTally] = []
        """Tallies of the APIs and versions that the run has handled."""
        self.busy_ms: float = 0.0
        """Sum of the durations of all runs."""

    def begin(self, now: float) -> None:
        """Opens the run. `now` is the time of its poll, on the monotonic clock."""
        self.is_open = True
        self.began = now
        self._completions = 0

    def add_connection(self, connection: Connection) -> bool:
        """Adds a connection whose `end_run` is to be called at the end. Returns False if no run is open."""
        if self.is_open:
            self._connections.append(connection)
            return True
        return False

    def may_complete(self) -> bool:
        """Whether one more request that waits may be completed in this run: one Produce can make very many ready.

        Otherwise the request is completed in a later turn. Requests completed between two runs count for the first.
        """
        self._completions += 1
        return self._completions <= _COMPLETIONS_PER_RUN

    def now_ms(self) -> int:
        """Returns the append time of the run's batches: read once, for the first of them."""
        if not self.produces:
            self._now_ms = self._clock.now_ms()
        return self._now_ms

    def add_partition(self, partition: Partition) -> None:
        """Adds a partition with staged batches. It may be added more than once: a second commit does nothing."""
        partitions = self.partitions
        if not partitions or partitions[-1] is not partition:
            partitions.append(partition)

    def flush_at_end(self, flush: Callable[[], None]) -> None:
        """Calls `flush` after the writes.

        It may run after later requests of the run: a request that reads the unflushed state must flush it itself.
        """
        self._flushes.append(flush)

    def wake_at_end(self, wake: Callable[[], None]) -> None:
        """Calls `wake` after the writes and flushes: for a follower, which gets the records of all of them at once."""
        self._wakeups.append(wake)

    def write(self) -> None:
        """Writes the staged batches, answers their requests, flushes, and wakes. Releases and sends nothing."""
        # Not only if there are requests: a handler that failed half-way has left batches without a request. They must
        # be written before their receive buffer is used again.
        if self.partitions:
            self._write_partitions()
        if self.produces:
            self._answer()
        if self._flushes:
            flushes, self._flushes = self._flushes, []
            _call_all(flushes, "Unexpected error flushing committed offsets")
        if self._wakeups:
            wakeups, self._wakeups = self._wakeups, []
            _call_all(wakeups, "Unexpected error waking a follower")

    def end(self) -> float:
        """Finishes the run and returns the time, on the monotonic clock."""
        try:
            self.write()
        finally:
            connections = self._connections
            # The list may grow while it is iterated: the end of one connection can complete a response of another.
            for connection in connections:
                connection.end_run()
            connections.clear()
            self.is_open = False
        return self._measure()

    def _measure(self) -> float:
        now = self.monotonic()
        milliseconds = 1000.0 * (now - self.began)
        bucket = bucket_of(milliseconds)
        self.busy_ms += milliseconds
        tallies = self.tallies
        for tally in tallies:
            tally.on_run_ended(bucket, milliseconds)
        tallies.clear()
        return now

    def _write_partitions(self) -> None:
        partitions, self.partitions = self.partitions, []
        for partition in partitions:
            try:
                partition.commit()
            except Exception:
                # The other partitions must still write: the receive buffers are released after this.
                logger.exception("Unexpected error writing staged batches of %r", partition)

    def _answer(self) -> None:
        produces, self.produces = self.produces, []
        for produce in produces:
            try:
                produce.on_written()
            except Exception as error:
                produce.fail(error)


def _call_all(functions: list[Callable[[], None]], problem: str) -> None:
    for function in functions:
        try:
            function()
        except Exception:
            logger.exception(problem)
