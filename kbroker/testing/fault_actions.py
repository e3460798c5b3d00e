"""Effects of faults: delayed or lost responses, and partitions that return errors.

`faults.py` decides when they apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import trio

from kbroker.log.append_result import AppendResult
from kbroker.protocol.error_codes import ErrorCode
from kbroker.server.wire.request_slot import RequestSlot, ResponsePart, release_parts

if TYPE_CHECKING:
    from kbroker.replication.partition import Partition
    from kbroker.replication.partition_table import PartitionTable

__all__ = ["LateSlot", "LosingSlot", "Refuse", "RefusingPartition", "with_refusals"]


class LateSlot(RequestSlot):
    """Delays a response until the time is over or `is_released` is set.

    Only the response is delayed. The request is processed at once, so the requests of a connection keep their order.
    """

    __slots__ = ("_is_released", "_nursery", "_seconds", "_slot")

    def __init__(self, slot: RequestSlot, nursery: trio.Nursery, seconds: float, is_released: trio.Event) -> None:
        super().__init__(slot.connection)
        self._slot = slot
        self._nursery = nursery
        self._seconds = seconds
        self._is_released = is_released
        slot.on_cancel = self.cancel

    def complete(self, parts: Sequence[ResponsePart]) -> None:
        if self.connection.is_closed:
            release_parts(parts)
            return
        assert self.parts is None
        self.parts = parts
        self.on_cancel = None
        self._nursery.start_soon(self._complete_later, parts)

    async def _complete_later(self, parts: Sequence[ResponsePart]) -> None:
        with trio.move_on_after(self._seconds):
            await self._is_released.wait()
        if not self.connection.is_closed:  # Otherwise `cancel` has released the parts.
            self._slot.complete(parts)


class LosingSlot(RequestSlot):
    """Closes the connection instead of sending the response, after the request was processed."""

    __slots__ = ()

    def __init__(self, slot: RequestSlot) -> None:
        super().__init__(slot.connection)
        slot.on_cancel = self.cancel

    def complete(self, parts: Sequence[ResponsePart]) -> None:
        release_parts(parts)
        self.parts = ()
        self.on_cancel = None
        self.connection.close()


class RefusingPartition:
    """Wraps a partition and returns one error code for all reads and writes of clients."""

    def __init__(self, partition: Partition, code: ErrorCode, on_refusal: Callable[[], None] = lambda: None) -> None:
        self._partition = partition
        self._code = code
        self._on_refusal = on_refusal

    def check_leader_epoch(self, epoch: int) -> ErrorCode:
        self._on_refusal()
        return self._code

    def stage(self, records: memoryview | None, version: int, acks: int, now_ms: int) -> AppendResult:
        self._on_refusal()
        return AppendResult(self._code)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._partition, name)


Refuse = Callable[["Partition"], RefusingPartition]


class _PartitionsWithRefusals:
    """Partition table in which some partitions return errors."""

    def __init__(self, table: PartitionTable, refusals: Mapping[tuple[str, int], Refuse], default: Refuse | None):
        self._table = table
        self._refusals = refusals
        self._default = default

    def get(self, topic: str, index: int) -> Partition | RefusingPartition | None:
        partition = self._table.get(topic, index)
        refuse = self._refusals.get((topic, index), self._default)
        return partition if partition is None or refuse is None else refuse(partition)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._table)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


def with_refusals(
    table: PartitionTable, refusals: Mapping[tuple[str, int], Refuse], *, every: ErrorCode | None = None
) -> PartitionTable:
    """Wraps a table so that the partitions in `refusals` return errors.

    With `every`, all other partitions do so too.
    """
    default = None if every is None else partial(RefusingPartition, code=every)
    return cast("PartitionTable", _PartitionsWithRefusals(table, refusals, default))
