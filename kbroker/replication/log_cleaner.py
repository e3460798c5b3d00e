"""The task that compacts logs: picks the dirtiest one that is due, has it compacted in a thread, swaps its segments.

One log at a time, whatever log.cleaner.threads says: more threads would share one interpreter. Rests for
log.cleaner.backoff.ms when nothing is due, or until a config changes. A log that holds something rotten is left alone
from then on. What is done to a log meanwhile (deleted, moved, truncated) ends its round, and nothing of it counts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import trio
from trio.to_thread import run_sync as in_thread

from kbroker.clock import Clock
from kbroker.config import BrokerConfig
from kbroker.controller.changes import Change, EntityConfigsChanged, TopicConfigsChanged
from kbroker.controller.image import Image
from kbroker.errors import StorageFailure
from kbroker.log.cleanable import Cleanable
from kbroker.log.compaction import Compaction, Limits
from kbroker.log.filesystem import FileSystem
from kbroker.log.log_compaction import begin_compaction, cleanable_of, replace_segments
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.record_batch import InvalidBatch
from kbroker.replication.cleaner_pace import CleanerPace, CompactionStopped
from kbroker.replication.flusher import Flusher
from kbroker.replication.partition import Partition
from kbroker.replication.partition_table import PartitionTable

__all__ = ["CleanerStats", "LogCleaner"]

logger = logging.getLogger(__name__)

_SLICE_SECONDS: Final = 0.002
_SHORTEST_REST_SECONDS: Final = 0.01
_SMALLEST_BUFFER: Final = 4096


class CleanerStats(NamedTuple):
    """Of the last round, but for `max_dirty_percent` and `max_delay_seconds`: of the last look at all logs."""

    recopy_percent: float = 0.0
    clean_seconds: float = 0.0
    buffer_percent: float = 0.0
    max_dirty_percent: float = 0.0
    max_delay_seconds: float = 0.0


class LogCleaner:
    def __init__(self, table: PartitionTable, flusher: Flusher, config: BrokerConfig, clock: Clock) -> None:
        self._table = table
        self._flusher = flusher
        self._config = config
        self._clock = clock
        self._pace = CleanerPace(clock, lambda: config.log_cleaner_io_max_bytes_per_second)
        self._is_due = trio.Event()
        self._uncleanable: dict[Partition, tuple[PartitionLog, int]] = {}
        self._last_run = clock.monotonic()
        self.stats = CleanerStats()

    def on_image(self, _image: Image, changes: Sequence[Change]) -> None:
        if any(isinstance(each, TopicConfigsChanged | EntityConfigsChanged) for each in changes):
            self._is_due.set()

    async def run(self) -> None:
        if not self._config.log_cleaner_enable:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_at_the_end)
            while True:
                if not await self.clean_dirtiest():
                    await self._rest()

    async def _stop_at_the_end(self) -> None:
        """The thread cannot be cancelled: it is told."""
        try:
            await trio.sleep_forever()
        finally:
            self._pace.stop()

    async def _rest(self) -> None:
        with trio.move_on_after(max(self._config.log_cleaner_backoff_ms / 1000, _SHORTEST_REST_SECONDS)):
            await self._is_due.wait()
        self._is_due = trio.Event()

    # What monitors ask for

    @property
    def seconds_since_last_run(self) -> float:
        return self._clock.monotonic() - self._last_run

    def uncleanable(self) -> list[tuple[Partition, int]]:
        """The partitions in which something is rotten, and how many bytes that leaves uncompacted."""
        return [(each, self._uncleanable[each][1]) for each in list(self._uncleanable) if self._is_uncleanable(each)]

    def _is_uncleanable(self, partition: Partition) -> bool:
        if partition not in self._uncleanable:
            return False
        if self._is_held(partition, self._uncleanable[partition][0]):
            return True
        del self._uncleanable[partition]  # deleted; or moved, and what was rotten may not have come along
        return False

    # Choosing

    async def clean_dirtiest(self) -> bool:
        """False: no log is due."""
        self._last_run = self._clock.monotonic()
        await self._remove_replaced()
        found = await self._find_dirtiest()
        return found is not None and await self._clean(*found)

    async def _remove_replaced(self) -> None:
        """The files of segments that were replaced, after file.delete.delay.ms."""
        now_ms = self._clock.now_ms()
        compacted = [each.log for each in self._table if each.log.config.is_compacted and each.log.is_loaded]
        paths = [path for log in compacted for path in log.take_deleted(now_ms)]
        if paths:
            try:
                await in_thread(_remove_all, self._table.directories[0].files.filesystem, paths)
            except StorageFailure as failure:
                logger.error("files of replaced segments are left behind until the next start: %s", failure)

    async def _find_dirtiest(self) -> tuple[Partition, Cleanable] | None:
        dirtiest: tuple[Partition, Cleanable] | None = None
        max_ratio, max_delay_ms = 0.0, 0
        began = self._clock.monotonic()
        for partition in list(self._table):
            log = partition.log
            # One that nobody has used since the start stays unread.
            if not log.config.is_compacted or not log.is_loaded or not self._may_clean(partition):
                continue
            try:
                cleanable = self._look_at(partition)
            except (StorageFailure, InvalidBatch) as failure:
                self._on_failed(partition, failure)
                continue
            max_ratio = max(max_ratio, cleanable.dirty_ratio)
            max_delay_ms = max(max_delay_ms, cleanable.overdue_ms)
            if cleanable.is_due(log.config) and (dirtiest is None or cleanable.dirty_ratio > dirtiest[1].dirty_ratio):
                dirtiest = partition, cleanable
            if self._clock.monotonic() - began > _SLICE_SECONDS:
                await trio.lowlevel.checkpoint()
                began = self._clock.monotonic()
        self.stats = self.stats._replace(max_dirty_percent=100 * max_ratio, max_delay_seconds=max_delay_ms / 1000)
        return dirtiest

    def _may_clean(self, partition: Partition) -> bool:
        return (
            self._is_held(partition, partition.log)
            and self._table.moves.get(partition.topic, partition.index) is None
            and not self._table.gates[self._table.directory_of(partition).path].is_closed
            and not self._is_uncleanable(partition)
        )

    def _is_held(self, partition: Partition, log: PartitionLog) -> bool:
        return self._table.replica(partition.topic, partition.index) is partition and partition.log is log

    def _look_at(self, partition: Partition) -> Cleanable:
        log, now_ms = partition.log, self._clock.now_ms()
        if log.recovery_point < log.segment_base_offsets[-1]:
            self._flusher.request(partition)
        cleanable = cleanable_of(log, now_ms)
        if cleanable.is_checkpoint_wrong:
            if log.cleaner_offset is not None and not log.config.is_deleted:
                text = "%s-%d was compacted up to %d, which is not in the log: it begins anew at %d"
                logger.warning(text, partition.topic, partition.index, log.cleaner_offset, cleanable.first_dirty_offset)
            log.cleaner_offset = cleanable.first_dirty_offset
        return cleanable

    # Cleaning

    async def _clean(self, partition: Partition, cleanable: Cleanable) -> bool:
        """True: the log is cleaner, or its round has ended before its time; look again."""
        log, truncations = partition.log, partition.log.truncations
        start = log.segment_base_offsets[0]

        def is_another() -> bool:
            return not self._is_held(partition, log) or log.truncations != truncations

        began, size_before = self._clock.monotonic(), cleanable.clean_bytes + cleanable.cleanable_bytes
        try:
            compaction = begin_compaction(log, cleanable, self._clock.now_ms(), self._limits(), self._pace)
            end_offset = await in_thread(compaction.build_map)
            for group in await in_thread(compaction.groups):
                cleaned = await in_thread(compaction.write_cleaned, group)
                if (
                    is_another()
                    or not self._may_clean(partition)
                    or not replace_segments(log, [each.segment for each in group], cleaned, self._clock.now_ms())
                ):
                    await in_thread(cleaned.discard)
                    return True
                await in_thread(self._table.directory_of(partition).files.filesystem.sync_directory, log.path)
            if is_another():
                return True
            log.cleaner_offset = end_offset
            await self._table.checkpoint_cleaner(self._table.directory_of(partition))
        except CompactionStopped:
            await trio.lowlevel.checkpoint()  # raises: the broker stops
            return True
        except Exception as failure:  # a bug too must cost this log its compaction, and nobody anything else
            if is_another() or log.segment_base_offsets[0] != start:
                return True  # it was read while it was taken away, or some of it by retention
            return self._on_failed(partition, failure)
        self._tell(partition, compaction, size_before, self._clock.monotonic() - began)
        return True

    def _limits(self) -> Limits:
        config = self._config
        return Limits(
            dedupe_buffer_size=config.log_cleaner_dedupe_buffer_size,
            load_factor=config.log_cleaner_io_buffer_load_factor,
            io_buffer_size=max(config.log_cleaner_io_buffer_size // 2, _SMALLEST_BUFFER),
        )

    def _on_failed(self, partition: Partition, failure: Exception) -> bool:
        if not isinstance(failure, StorageFailure):
            is_expected = isinstance(failure, InvalidBatch | FileNotFoundError)
            self._give_up(partition, str(failure), None if is_expected else failure)
            return True
        if failure.is_full:
            text = "%s-%d cannot be compacted for want of room, and is tried again: %s"
            logger.error(text, partition.topic, partition.index, failure)
            return False
        self._table.gates[self._table.directory_of(partition).path].close(failure)
        return True

    def _give_up(self, partition: Partition, reason: str, bug: Exception | None = None) -> None:
        size = 0
        with suppress(StorageFailure, InvalidBatch):
            size = cleanable_of(partition.log, self._clock.now_ms()).cleanable_bytes
        self._uncleanable[partition] = (partition.log, size)
        fields = {"topic": partition.topic, "partition": partition.index}
        text = "%s-%d is not compacted any more, until a restart: %s"
        logger.error(text, partition.topic, partition.index, reason, extra=fields, exc_info=bug)

    def _tell(self, partition: Partition, compaction: Compaction, size_before: int, seconds: float) -> None:
        written = compaction.written_bytes
        self.stats = self.stats._replace(
            recopy_percent=100 * written / size_before if size_before else 0.0,
            clean_seconds=seconds,
            buffer_percent=100 * compaction.map_use,
        )
        fields = {"topic": partition.topic, "partition": partition.index, "bytes": written}
        text = "%s-%d has been compacted up to offset %d: %d bytes became %d in %.2f s"
        end_offset = partition.log.cleaner_offset
        logger.info(text, partition.topic, partition.index, end_offset, size_before, written, seconds, extra=fields)


def _remove_all(filesystem: FileSystem, paths: list[str]) -> None:
    for path in paths:
        filesystem.remove(path)
