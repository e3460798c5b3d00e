"""Tasks that compact logs: each takes the dirtiest log that is due, has it compacted, then replaces its segments.

There are log.cleaner.threads of them. A worker compacts in a process or a thread (`cleaner_worker`). A task waits for
log.cleaner.backoff.ms if no log is due, or until a config changes. If a log is deleted, moved or truncated while it is
compacted, the result is discarded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

import trio
from trio.to_thread import run_sync as in_thread

from kbroker.clock import Clock
from kbroker.config.broker import BrokerConfig
from kbroker.controller.changes import Change, EntityConfigsChanged, TopicConfigsChanged
from kbroker.controller.image import Image
from kbroker.errors import StorageFailure
from kbroker.log.cleaning.cleanable import Cleanable
from kbroker.log.cleaning.compaction import Limits
from kbroker.log.files.filesystem import FileSystem
from kbroker.log.log_compaction import plan_compaction, replace_segments
from kbroker.replication.assigned_replicas import AssignedReplicas
from kbroker.replication.cleaning.cleanable_logs import CleanableLogs
from kbroker.replication.cleaning.cleaner_pace import IoThrottle
from kbroker.replication.cleaning.cleaner_worker import CleanerWorker, CompactionRound, ProcessLost
from kbroker.replication.flusher import Flusher
from kbroker.replication.partition import Partition
from kbroker.thread_pace import ThreadStopped

__all__ = ["CleanerStats", "LogCleaner"]

logger = logging.getLogger(__name__)

_MIN_BACKOFF_SECONDS: Final = 0.01
_MIN_BUFFER_BYTES: Final = 4096


class CleanerStats(NamedTuple):
    """Figures of the last compaction; `max_dirty_percent` and `max_delay_seconds` of the last look at all logs.

    `runs`, `read_bytes`, `written_bytes` and `busy_seconds` are sums over all compactions since the start.
    """

    recopy_percent: float = 0.0
    clean_seconds: float = 0.0
    buffer_percent: float = 0.0
    max_dirty_percent: float = 0.0
    max_delay_seconds: float = 0.0
    runs: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    busy_seconds: float = 0.0


class LogCleaner:
    def __init__(self, replicas: AssignedReplicas, flusher: Flusher, config: BrokerConfig, clock: Clock) -> None:
        self._table = replicas.table
        self._log_dirs = replicas.log_dirs
        self._logs = CleanableLogs(replicas, flusher, clock)
        self._config = config
        self._clock = clock
        self._throttle = IoThrottle(clock, lambda: config.log_cleaner_io_max_bytes_per_second)
        self._workers: dict[int, CleanerWorker] = {}
        self._is_due = trio.Event()
        self._last_run = clock.monotonic()
        self.stats = CleanerStats()

    def on_image(self, _image: Image, changes: Sequence[Change]) -> None:
        if any(isinstance(change, TopicConfigsChanged | EntityConfigsChanged) for change in changes):
            self._is_due.set()
            self._is_due = trio.Event()

    async def run(self) -> None:
        if not self._config.log_cleaner_enable:
            return
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stop_workers_at_end)
                while True:
                    for number in range(self._config.log_cleaner_threads):
                        if number not in self._workers:
                            self._workers[number] = self.new_worker()
                            nursery.start_soon(self._work, number)
                    await self._is_due.wait()
                    await trio.lowlevel.checkpoint()
        finally:
            for worker in self._workers.values():
                worker.end_process()

    def new_worker(self) -> CleanerWorker:
        return CleanerWorker(self._clock, self._throttle)

    async def _work(self, number: int) -> None:
        """Compacts logs until log.cleaner.threads is lowered."""
        worker = self._workers[number]
        while number < self._config.log_cleaner_threads:
            is_due = self._is_due  # before the look: a change during it must not be missed
            if not await self.clean_dirtiest(worker):
                await in_thread(worker.end_idle_process)
                await self._back_off(is_due)
        await in_thread(worker.end_process)
        del self._workers[number]

    async def _stop_workers_at_end(self) -> None:
        """Stops the compacting threads when this task is cancelled: trio cannot cancel a thread."""
        try:
            await trio.sleep_forever()
        finally:
            for worker in self._workers.values():
                worker.stop()

    async def _back_off(self, is_due: trio.Event) -> None:
        with trio.move_on_after(max(self._config.log_cleaner_backoff_ms / 1000, _MIN_BACKOFF_SECONDS)):
            await is_due.wait()

    @property
    def seconds_since_last_run(self) -> float:
        return self._clock.monotonic() - self._last_run

    def uncleanable(self) -> list[tuple[Partition, int]]:
        """Returns the uncleanable partitions and the bytes in each that stay uncompacted."""
        return self._logs.uncleanable()

    async def clean_dirtiest(self, worker: CleanerWorker) -> bool:
        """Compacts the dirtiest log. Returns False if no log is due, or the disk is full."""
        self._last_run = self._clock.monotonic()
        await self._remove_replaced()
        found = await self._logs.find_dirtiest()
        self.stats = self.stats._replace(
            max_dirty_percent=100 * found.max_dirty_ratio, max_delay_seconds=found.max_delay_ms / 1000
        )
        if found.dirtiest is None:
            return False
        partition, cleanable = found.dirtiest
        if partition in self._logs.in_progress:
            return True  # another worker has taken it: look again
        self._logs.in_progress.add(partition)
        try:
            return await self._clean(worker, partition, cleanable)
        finally:
            self._logs.in_progress.discard(partition)

    async def _remove_replaced(self) -> None:
        """Deletes the files of replaced segments after file.delete.delay.ms."""
        now_ms = self._clock.now_ms()
        opened = [log for partition in self._table if (log := partition.log_handle.opened) is not None]
        paths = [path for log in opened if log.config.is_compacted for path in log.pending_deletes.pop_due(now_ms)]
        if paths:
            try:
                await in_thread(_remove_all, self._log_dirs.filesystem, paths)
            except StorageFailure as failure:
                logger.error("Could not delete replaced segments; they are deleted at the next start: %s", failure)

    async def _clean(self, worker: CleanerWorker, partition: Partition, cleanable: Cleanable) -> bool:
        """Compacts a log. Returns True if the next log may be compacted at once, whether this one succeeded or not."""
        handle, log = partition.log_handle, partition.log
        truncations = log.truncations
        start = log.segment_base_offsets[0]
        segments = {segment.base_offset: segment for segment in log.segments}

        def has_changed() -> bool:
            # Checked after every await: the partition may be deleted, moved or truncated while the thread works.
            return not self._logs.is_current(partition, handle) or log.truncations != truncations

        started, size_before = self._clock.monotonic(), cleanable.clean_bytes + cleanable.cleanable_bytes
        try:
            plan = plan_compaction(log, cleanable, self._clock.now_ms(), self._limits())
            compaction = await in_thread(worker.begin, plan)
            end_offset = await in_thread(compaction.build_map)
            for group in await in_thread(compaction.groups):
                cleaned = await in_thread(compaction.write_cleaned, group)
                old = [segments[source.base_offset] for source in group]
                if (
                    has_changed()
                    or not self._logs.may_clean(partition)
                    or not replace_segments(log, old, cleaned, self._clock.now_ms())
                ):
                    await in_thread(cleaned.discard)
                    return True
                await in_thread(self._log_dirs.filesystem.sync_directory, log.path)
            if has_changed():
                return True
            log.cleaner_offset = end_offset
            await self._log_dirs.checkpoint_cleaner(self._log_dirs.directory_of(partition))
        except ThreadStopped:
            await trio.lowlevel.checkpoint()  # raises Cancelled: the broker stops
            return True
        except ProcessLost as failure:
            text = "Could not clean the log of %s-%d; retrying later: %s"
            logger.error(text, partition.topic, partition.index, failure)
            return False
        except Exception as failure:  # even a bug must only stop the compaction of this log
            if has_changed() or log.segment_base_offsets[0] != start:
                return True  # files were deleted while the thread read them, by deletion or by retention
            return self._logs.on_failed(partition, failure)
        self._log_cleaned(partition, compaction, size_before, self._clock.monotonic() - started)
        return True

    def _limits(self) -> Limits:
        """Returns the memory of one worker: all share the configured size, as Kafka's threads do."""
        config = self._config
        workers = max(config.log_cleaner_threads, 1)
        return Limits(
            dedupe_buffer_size=config.log_cleaner_dedupe_buffer_size // workers,
            load_factor=config.log_cleaner_io_buffer_load_factor,
            io_buffer_size=max(config.log_cleaner_io_buffer_size // 2 // workers, _MIN_BUFFER_BYTES),
        )

    def _log_cleaned(self, partition: Partition, compaction: CompactionRound, size_before: int, seconds: float) -> None:
        written = compaction.written_bytes
        stats = self.stats
        self.stats = stats._replace(
            runs=stats.runs + 1,
            read_bytes=stats.read_bytes + size_before,
            written_bytes=stats.written_bytes + written,
            busy_seconds=stats.busy_seconds + seconds,
            recopy_percent=100 * written / size_before if size_before else 0.0,
            clean_seconds=seconds,
            buffer_percent=100 * compaction.map_use,
        )
        fields = {"topic": partition.topic, "partition": partition.index, "bytes": written}
        text = "Cleaned log of %s-%d up to offset %d: from %d to %d bytes in %.2f s"
        end_offset = partition.log.cleaner_offset
        logger.info(text, partition.topic, partition.index, end_offset, size_before, written, seconds, extra=fields)


def _remove_all(filesystem: FileSystem, paths: list[str]) -> None:
    for path in paths:
        filesystem.remove(path)
