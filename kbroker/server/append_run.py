"""The produce requests of one run of frames: their batches are written together, then they are answered.

A run is what the connections of one round have sent. `end` comes before anything of it is answered, while the receive
buffers still stand; any other kind of request ends the run first, so that it sees what came before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kbroker.replication.partition import Partition

__all__ = ["AppendRun", "StagedProduce"]


class StagedProduce(Protocol):
    def on_written(self) -> None:
        """All partitions of the run have been written, or have refused."""
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
            partition.commit()
        for produce in produces:
            produce.on_written()
