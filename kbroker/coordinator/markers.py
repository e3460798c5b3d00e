"""Writes the markers that end a transaction into its partitions. Markers in `__consumer_offsets` go through its shards.

Retries until the marker of every partition is committed or the partition is deleted. This broker leads all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple, Protocol

from kbroker.clock import Clock
from kbroker.coordinator.shard_log import Timers
from kbroker.log.append_result import AppendResult
from kbroker.names import CONSUMER_OFFSETS, TopicPartition
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.records import EndTransactionMarker, build_end_transaction_batch
from kbroker.replication.partition import Partition

__all__ = ["Markers", "TransactionEnd"]

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.1
_FENCED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
"""A newer producer or coordinator has written to the partition: it needs this marker no more."""


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
    def __init__(
        self,
        *,
        find: Callable[[str, int], Partition | ErrorCode],
        groups: Groups,
        clock: Clock,
        timers: Timers,
    ) -> None:
        """`find` returns a partition that this broker leads, or the reason why there is none."""
        self._find = find
        self._groups = groups
        self._clock = clock
        self._timers = timers

    def write(self, end: TransactionEnd, partitions: Iterable[TopicPartition], done: Callable[[], None]) -> None:
        """Writes all markers, and calls `done` when every marker is committed; perhaps before it returns."""
        writing = _Writing(end, set(partitions), done)
        for partition in sorted(writing.left):
            self._write(writing, partition)
        writing.end_if_done()

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

    def _write(self, writing: _Writing, partition: TopicPartition) -> None:
        self.append(writing.end, *partition, partial(self._on_written, writing, partition))

    def _on_written(self, writing: _Writing, partition: TopicPartition, code: int) -> None:
        if code in _FENCED:
            text = "%s-%d refused the transaction marker of producer %d: %s"
            logger.warning(text, *partition, writing.end.producer_id, ErrorCode(code).name)
        elif code and code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._timers.add(_RETRY_SECONDS, partial(self._write, writing, partition))
            return
        writing.left.discard(partition)
        if writing.is_begun:
            writing.end_if_done()


class _Writing:
    """One transaction whose markers are being written."""

    __slots__ = ("_done", "end", "is_begun", "left")

    def __init__(self, end: TransactionEnd, left: set[TopicPartition], done: Callable[[], None]) -> None:
        self.end = end
        self.left = left
        # `done` must be called once: during the first round, in which appends may complete at once, only `write`
        # checks for the end.
        self.is_begun = False
        self._done = done

    def end_if_done(self) -> None:
        self.is_begun = True
        if not self.left:
            self._done()
