"""Appends the markers that end transactions to partitions that this broker leads.

Markers in `__consumer_offsets` go through its shards: offsets of the transaction take effect with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from kbroker.clock import Clock
from kbroker.log.append_result import AppendResult
from kbroker.names import CONSUMER_OFFSETS
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.records import EndTransactionMarker, build_end_transaction_batch
from kbroker.replication.partition import Partition

__all__ = ["Markers", "TransactionEnd"]


class TransactionEnd(NamedTuple):
    """The fields of a marker."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int


class Groups(Protocol):
    """The part of the group coordinator that markers need."""

    def append_marker(
        self, index: int, batch: bytearray, producer_id: int, *, is_commit: bool
    ) -> AppendResult | ErrorCode: ...


class Markers:
    def __init__(self, *, find: Callable[[str, int], Partition | ErrorCode], groups: Groups, clock: Clock) -> None:
        """`find` returns a partition that this broker leads, or the reason why there is none."""
        self._find = find
        self._groups = groups
        self._clock = clock

    def append(self, end: TransactionEnd, topic: str, index: int, done: Callable[[int], None]) -> None:
        """Appends one marker, and calls `done` with the error code once it is committed."""
        partition = self._find(topic, index)
        if isinstance(partition, ErrorCode):
            done(partition)
            return
        now_ms = self._clock.now_ms()
        batch = build_end_transaction_batch(
            EndTransactionMarker(end.is_commit, end.coordinator_epoch),
            producer_id=end.producer_id,
            producer_epoch=end.producer_epoch,
            timestamp=now_ms,
        )
        result: AppendResult | ErrorCode
        if topic == CONSUMER_OFFSETS:
            result = self._groups.append_marker(index, batch, end.producer_id, is_commit=end.is_commit)
        else:
            result = partition.append_internal(batch, now_ms)
        if isinstance(result, ErrorCode):
            done(result)
        elif result.error or partition.is_committed(result.last_offset):
            done(result.error)
        else:
            partition.when_committed(result.last_offset, done)
