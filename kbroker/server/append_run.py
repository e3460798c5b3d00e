"""The produce requests of one run of frames: their batches are written together, then they are answered.

A run is what the connections of one round have sent. `end` comes before anything of it is answered, while the receive
buffers still stand; any other kind of request ends the run first, so that it sees what came before it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kbroker.replication.partition import Partition

__all__ = ["AppendRun", "StagedProduce"]

logger = logging.getLogger(__name__)


class StagedProduce(Protocol):
    def on_written(self) -> None:
        """All partitions of the run have been written, or have refused."""
        ...

    def fail(self, error: Exception) -> None:
        """A bug met it on the way."""
        ...


class AppendRun:
    __slots__ = ("partitions", "produces")

    def __init__(self) -> None:
        self.partitions: list[Partition] = []
        self.produces: list[StagedProduce] = []

    def end(self) -> None:
        partitions, self.partitions = self.partitions, []
        produces, self.produces = self.produces, []
        for partition in partitions:
            try:
                partition.commit()
            except Exception:
                # A bug of ours. The others must still be written, before the buffers of the run go.
                logger.exception("%r could not write what was staged", partition)
        for produce in produces:
            try:
                produce.on_written()
            except Exception as error:
                produce.fail(error)
