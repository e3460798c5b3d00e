"""What the requests of one run of frames write: batches and committed offsets, written together and then answered.

A run is what the connections of one round have sent. `end` comes before anything of it is answered, while the receive
buffers still stand; any other kind of request ends the run first, so that it sees what came before it.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kbroker.clock import Clock

if TYPE_CHECKING:
    from kbroker.replication.partition import Partition

__all__ = ["AppendRun", "Staged", "StagedProduce"]

logger = logging.getLogger(__name__)

Staged = list[tuple["Partition", int, Any]]
"""Partition, last offset and answer of each batch."""


class StagedProduce(ABC):
    """A request whose batches wait to be written."""

    __slots__ = ()

    @abstractmethod
    def on_written(self) -> None:
        """All partitions have written, or have refused: answer."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Answer that something has gone wrong here."""


class AppendRun:
    __slots__ = ("_clock", "_now_ms", "flushes", "partitions", "produces")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now_ms = 0
        self.partitions: list[Partition] = []
        self.produces: list[StagedProduce] = []
        self.flushes: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        """The time at which all of the run comes."""
        if not self.produces:
            self._now_ms = self._clock.now_ms()
        return self._now_ms

    def add(self, partition: Partition) -> None:
        """It has something staged, and is to write it at the end."""
        partitions = self.partitions
        if not partitions or partitions[-1] is not partition:
            partitions.append(partition)

    def flush_at_end(self, flush: Callable[[], None]) -> None:
        """For what may be written after later requests of the run: they flush it themselves if they look at it."""
        self.flushes.append(flush)

    def end(self) -> None:
        partitions, self.partitions = self.partitions, []
        produces, self.produces = self.produces, []
        for partition in partitions:
            try:
                partition.commit()
            except Exception:
                # A bug of ours. The others must still be written, before the buffers of the run go.
                logger.exception("%r could not write what was staged", partition)
        for each in produces:
            try:
                each.on_written()
            except Exception as error:
                each.fail(error)
        if self.flushes:
            self._flush()

    def _flush(self) -> None:
        flushes, self.flushes = self.flushes, []
        for flush in flushes:
            try:
                flush()
            except Exception:
                logger.exception("what a run has committed could not be written")
