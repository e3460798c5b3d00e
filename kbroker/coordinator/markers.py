"""Writes the markers that end a transaction into its partitions, those of `__consumer_offsets` through their groups.

Keeps at it until every partition has its marker, committed, or is no more. All partitions are this broker's own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple, Protocol

from kbroker.clock import Clock
from kbroker.coordinator.shard_log import Timers
from kbroker.log.partition_log import AppendResult
from kbroker.names import CONSUMER_OFFSETS
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.records import EndTransactionMarker, build_end_transaction_batch
from kbroker.replication.partition import Partition

__all__ = ["Ending", "Markers"]

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.1
_NEVER: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
"""Somebody newer has taken the transaction's place there: its marker has nothing to say."""

TopicPartition = tuple[str, int]


class Ending(NamedTuple):
    """What a marker says."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int


class Groups(Protocol):
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
        """`find`: a partition that is led here, or why there is none."""
        self._find = find
        self._groups = groups
        self._clock = clock
        self._timers = timers

    def write(self, ending: Ending, partitions: Iterable[TopicPartition], done: Callable[[], None]) -> None:
        """Calls `done` when every partition has its marker: at once, where nobody has to be waited for."""
        writing = _Writing(ending, set(partitions), done)
        for partition in sorted(writing.left):
            self._write(writing, partition)
        writing.end_if_done()

    def append(self, ending: Ending, topic: str, index: int, done: Callable[[int], None]) -> None:
        """One marker; `done` gets its error code once it is committed."""
        partition = self._find(topic, index)
        if isinstance(partition, ErrorCode):
            done(partition)
            return
        now_ms = self._clock.now_ms()
        batch = build_end_transaction_batch(
            EndTransactionMarker(ending.is_commit, ending.coordinator_epoch),
            producer_id=ending.producer_id,
            producer_epoch=ending.producer_epoch,
            timestamp=now_ms,
        )
        result: AppendResult | ErrorCode
        if topic == CONSUMER_OFFSETS:
            result = self._groups.append_marker(index, batch, ending.producer_id, is_commit=ending.is_commit)
        else:
            result = partition.append_internal(batch, now_ms)
        if isinstance(result, ErrorCode):
            done(result)
        elif result.error or partition.is_committed(result.last_offset):
            done(result.error)
        else:
            partition.wait_committed(result.last_offset, done)

    def _write(self, writing: _Writing, partition: TopicPartition) -> None:
        self.append(writing.ending, *partition, partial(self._on_written, writing, partition))

    def _on_written(self, writing: _Writing, partition: TopicPartition, code: int) -> None:
        if code in _NEVER:
            text = "%s-%d refuses the marker of producer %d: %s"
            logger.warning(text, *partition, writing.ending.producer_id, ErrorCode(code).name)
        elif code and code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._timers.add(_RETRY_SECONDS, partial(self._write, writing, partition))
            return
        writing.left.discard(partition)
        if writing.is_begun:
            writing.end_if_done()


class _Writing:
    """One transaction whose markers are being written."""

    __slots__ = ("_done", "ending", "is_begun", "left")

    def __init__(self, ending: Ending, left: set[TopicPartition], done: Callable[[], None]) -> None:
        self.ending = ending
        self.left = left
        self.is_begun = False  # while the first round is under way its end is not looked for
        self._done = done

    def end_if_done(self) -> None:
        self.is_begun = True
        if not self.left:
            self._done()
