"""What the requests of one run of frames write: batches and committed offsets, written together and then answered.

A run is what the connections of one round have sent. `end` comes before anything of it is answered, while the receive
buffers still stand; any other kind of request ends the run first, so that it sees what came before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbroker.replication.partition import Partition
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["AppendRun", "Staged", "StagedProduce"]

logger = logging.getLogger(__name__)

Staged = list[tuple["Partition", int, Any]]
"""Partition, last offset and answer of each batch."""

StagedProduce = tuple[
    Callable[["Context", "Request", Any, Staged], None],  # called when all partitions have written, or have refused
    "Context",
    "Request",
    Any,  # the response
    Staged,
]
"""A plain tuple, for there is one for each request on the hot path."""


class AppendRun:
    __slots__ = ("flushes", "partitions", "produces")

    def __init__(self) -> None:
        self.partitions: list[Partition] = []
        self.produces: list[StagedProduce] = []
        self.flushes: list[Callable[[], None]] = []

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
        for on_written, context, request, response, staged in produces:
            try:
                on_written(context, request, response, staged)
            except Exception as error:
                request.fail(error)
        if self.flushes:
            self._flush()

    def _flush(self) -> None:
        flushes, self.flushes = self.flushes, []
        for flush in flushes:
            try:
                flush()
            except Exception:
                logger.exception("what a run has committed could not be written")
