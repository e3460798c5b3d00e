"""Selects the log to compact next: the one with the highest dirty ratio of all that are due.

Keeps the uncleanable partitions (Kafka's word): those whose compaction failed because of corruption. They are left out
until a restart. Never compacts: `LogCleaner` does.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import NamedTuple

from kbroker.clock import Clock
from kbroker.errors import StorageFailure
from kbroker.log.cleaning.cleanable import Cleanable
from kbroker.log.log_compaction import cleanable_of
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.record_batch import InvalidBatch
from kbroker.replication.assigned_replicas import AssignedReplicas
from kbroker.replication.flusher import Flusher
from kbroker.replication.partition import Partition
from kbroker.time_slice import TimeSlice

__all__ = ["CleanableLogs", "DirtyLogs"]

logger = logging.getLogger(__name__)


class DirtyLogs(NamedTuple):
    """Result of one look at all compacted logs."""

    dirtiest: tuple[Partition, Cleanable] | None
    """None if no log is due."""
    max_dirty_ratio: float
    max_delay_ms: int
    """Longest time by which a log exceeds its max.compaction.lag.ms."""


class CleanableLogs:
    def __init__(self, replicas: AssignedReplicas, flusher: Flusher, clock: Clock) -> None:
        self._table = replicas.table
        self._log_dirs = replicas.log_dirs
        self._moves = replicas.moves
        self._flusher = flusher
        self._clock = clock
        self._uncleanable: dict[Partition, tuple[PartitionLog, int]] = {}
        self.in_progress: set[Partition] = set()
        """Partitions whose logs are being compacted."""

    async def find_dirtiest(self) -> DirtyLogs:
        dirtiest: tuple[Partition, Cleanable] | None = None
        max_ratio, max_delay_ms = 0.0, 0
        time_slice = TimeSlice(self._clock)
        for partition in list(self._table):
            log = partition.log_handle.opened
            # Logs that were not used since the start are not opened for this.
            if log is None or not log.config.is_compacted or not self.may_clean(partition):
                continue
            if partition in self.in_progress:
                continue
            try:
                cleanable = self._examine(partition)
            except (StorageFailure, InvalidBatch) as failure:
                self.on_failed(partition, failure)
                continue
            max_ratio = max(max_ratio, cleanable.dirty_ratio)
            max_delay_ms = max(max_delay_ms, cleanable.overdue_ms)
            if cleanable.is_due(log.config) and (dirtiest is None or cleanable.dirty_ratio > dirtiest[1].dirty_ratio):
                dirtiest = partition, cleanable
            await time_slice.checkpoint_if_over()
        return DirtyLogs(dirtiest, max_ratio, max_delay_ms)

    def _examine(self, partition: Partition) -> Cleanable:
        log, now_ms = partition.log, self._clock.now_ms()
        if log.recovery_point < log.segment_base_offsets[-1]:
            self._flusher.request(partition)  # only fsynced segments are compacted
        cleanable = cleanable_of(log, now_ms)
        if cleanable.is_checkpoint_wrong:
            if log.cleaner_offset is not None and not log.config.is_deleted:
                text = "Resetting first dirty offset of %s-%d to %d since the checkpointed offset %d is invalid."
                logger.warning(text, partition.topic, partition.index, cleanable.first_dirty_offset, log.cleaner_offset)
            log.cleaner_offset = cleanable.first_dirty_offset
        return cleanable

    def may_clean(self, partition: Partition) -> bool:
        """Whether the log may be replaced now: not deleted, not being moved, not uncleanable, its disk writable."""
        return (
            self.is_current(partition, partition.log_handle)
            and self._moves.get(partition.topic, partition.index) is None
            and not self._log_dirs.gate_of(partition).is_closed
            and not self._is_uncleanable(partition)
        )

    def is_current(self, partition: Partition, handle: PartitionLog) -> bool:
        """Whether the broker still has the partition, and `handle` is its log: neither deleted nor moved."""
        has_replica = self._table.replica(partition.topic, partition.index) is partition
        return has_replica and partition.log_handle is handle

    # Uncleanable partitions

    def uncleanable(self) -> list[tuple[Partition, int]]:
        """Returns the uncleanable partitions and the bytes in each that stay uncompacted."""
        partitions = list(self._uncleanable)
        return [
            (partition, self._uncleanable[partition][1]) for partition in partitions if self._is_uncleanable(partition)
        ]

    def _is_uncleanable(self, partition: Partition) -> bool:
        if partition not in self._uncleanable:
            return False
        if self.is_current(partition, self._uncleanable[partition][0]):
            return True
        del self._uncleanable[partition]  # deleted; or moved, and the copy may not have the corruption
        return False

    def on_failed(self, partition: Partition, failure: Exception) -> bool:
        """Handles a failure to compact a log. Returns False if the disk is full: wait before the next attempt."""
        if not isinstance(failure, StorageFailure):
            is_expected = isinstance(failure, InvalidBatch | FileNotFoundError)
            self._mark_uncleanable(partition, str(failure), None if is_expected else failure)
            return True
        if failure.is_full:
            text = "Could not clean the log of %s-%d since the disk is full; retrying later: %s"
            logger.error(text, partition.topic, partition.index, failure)
            return False
        self._log_dirs.gate_of(partition).close(failure)
        return True

    def _mark_uncleanable(self, partition: Partition, reason: str, bug: Exception | None) -> None:
        size = 0
        with suppress(StorageFailure, InvalidBatch):
            size = cleanable_of(partition.log, self._clock.now_ms()).cleanable_bytes
        self._uncleanable[partition] = (partition.log_handle, size)
        fields = {"topic": partition.topic, "partition": partition.index}
        text = "Could not clean the log of %s-%d. Marking its partition as uncleanable until a restart: %s"
        logger.error(text, partition.topic, partition.index, reason, extra=fields, exc_info=bug)
