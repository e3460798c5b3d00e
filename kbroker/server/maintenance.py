"""Periodic work: retention, timed flushes, checkpoints, expired producers, deleted files, damaged logs, idle quotas,
freed memory.

Work over many partitions is done in slices of about 2 ms, so that requests do not wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

import trio

from kbroker.clock import Clock
from kbroker.config.broker import BrokerConfig
from kbroker.errors import StorageFailure, UserError
from kbroker.log.files.filesystem import FileSystem
from kbroker.log.log_config import UNLIMITED
from kbroker.replication.assigned_replicas import AssignedReplicas
from kbroker.replication.background_recovery import BumpLeaderEpochs, recover_unsound
from kbroker.replication.flusher import Flusher
from kbroker.replication.partition import Partition
from kbroker.server.freed_memory import FreedMemory
from kbroker.server.quotas.request_quotas import Quotas
from kbroker.server.requests.thread_work import ThreadWork
from kbroker.time_slice import TimeSlice

__all__ = ["Maintenance"]

logger = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_DELETED_AT_ONCE = 16


class Maintenance:
    def __init__(
        self,
        replicas: AssignedReplicas,
        flusher: Flusher,
        config: BrokerConfig,
        clock: Clock,
        quotas: Quotas,
        bump_leader_epochs: BumpLeaderEpochs,
        thread_work: ThreadWork,
        memory: FreedMemory,
        *,
        announce_failure: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`announce_failure`: tells the controller that a data directory has failed; None on a single node."""
        self._announce_failure = announce_failure
        self._memory = memory
        self._bump_leader_epochs = bump_leader_epochs
        self._thread_work = thread_work
        self._quotas = quotas
        self._replicas = replicas
        self._flusher = flusher
        self._config = config
        self._clock = clock
        self._deleting: set[Partition] = set()
        """Partitions whose deleted segments still have files."""

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tick, nursery)
            config = self._config
            nursery.start_soon(self._every, config.log_retention_check_interval_ms, self._apply_retention)
            nursery.start_soon(self._every, config.log_flush_offset_checkpoint_interval_ms, self._checkpoint)
            nursery.start_soon(self._every, config.producer_id_expiration_check_interval_ms, self._expire_producers)

    async def _tick(self, nursery: trio.Nursery) -> None:
        while True:
            await trio.sleep(_TICK_SECONDS)
            await self._replicas.log_dirs.reopen_full()
            dirty = list(self._replicas.dirty)
            await self._sliced(dirty, self._flush_if_due)
            self._check_directories()
            if self._replicas.retire_offline() and self._announce_failure is not None:
                nursery.start_soon(self._announce_failure)  # may wait for ZooKeeper
            self._replicas.open_missing()
            await recover_unsound(self._replicas, self._bump_leader_epochs)
            self._quotas.forget_idle()
            await self._purge_deleted()
            await self._remove_due()
            self._replicas.refused.expire(self._clock.now_ms())
            is_due = self._memory.is_due()
            if self._thread_work.pop_has_freed() or is_due:
                await trio.to_thread.run_sync(self._memory.give_back)

    def _check_directories(self) -> None:
        """Raises UserError, which ends the broker as in Kafka, if all its data directories have failed."""
        log_dirs = self._replicas.log_dirs
        if log_dirs.have_all_failed:
            paths = ", ".join(log_dirs.gates)
            raise UserError(
                f"Shutdown broker because all log dirs in {paths} have failed. Replace the disk and restart the broker."
            )

    async def _every(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await trio.sleep(max(interval_ms, 1) / 1000)
            try:
                await work()
            except StorageFailure as failure:
                logger.error("Maintenance failed; retrying in %d ms: %s", interval_ms, failure)

    async def _purge_deleted(self) -> None:
        for directory in self._replicas.log_dirs.directories:
            if directory.has_deleted and (paths := directory.pop_purgeable()):
                try:
                    await trio.to_thread.run_sync(directory.remove_directories, paths)
                except StorageFailure as failure:
                    logger.error("Could not delete a partition's directory; retrying at the next start: %s", failure)

    def _flush_if_due(self, partition: Partition) -> None:
        log = partition.log_handle.opened
        if log is not None and log.is_flush_due(self._clock.now_ms()):
            self._flusher.request(partition)
        elif log is None or log.config.flush_ms == UNLIMITED or log.recovery_point >= log.log_end_offset:
            # Nothing is due before the next append, which adds the partition again.
            self._replicas.dirty.discard(partition)

    async def _apply_retention(self) -> None:
        def apply_to(partition: Partition) -> None:
            partition.gate.with_reserve(partition.log.apply_retention, self._clock.now_ms())
            if partition.log.pending_deletes:
                self._deleting.add(partition)

        await self._sliced(self._replicas.table, apply_to)

    async def _remove_due(self) -> None:
        """Deletes the files of deleted segments whose file.delete.delay.ms is over."""
        removable: list[str] = []
        for partition in list(self._deleting):
            log = partition.log_handle.opened
            if log is not None and not partition.is_gone:
                removable += log.pending_deletes.pop_due(self._clock.now_ms())
            if log is None or partition.is_gone or not log.pending_deletes:
                self._deleting.discard(partition)
        await self._remove(removable)

    async def _remove(self, paths: list[str]) -> None:
        """Deletes files in a thread, because a large file can take seconds.

        A few at a time: the broker waits for the thread when it stops. The next start deletes the rest.
        """
        filesystem = self._replicas.log_dirs.filesystem
        for start in range(0, len(paths), _DELETED_AT_ONCE):
            await trio.to_thread.run_sync(_remove_all, filesystem, paths[start : start + _DELETED_AT_ONCE])

    async def _expire_producers(self) -> None:
        await self._sliced(self._replicas.table, self._expire_producers_of)

    def _expire_producers_of(self, partition: Partition) -> None:
        if partition.log_handle.opened is not None:
            partition.log.producers.expire(
                now_ms=self._clock.now_ms(), expiration_ms=self._config.producer_id_expiration_ms
            )

    async def _checkpoint(self) -> None:
        await self._replicas.log_dirs.checkpoint()

    async def _sliced(self, partitions: Iterable[Partition], work: Callable[[Partition], None]) -> None:
        time_slice = TimeSlice(self._clock)
        for partition in list(partitions):
            if self._replicas.table.replica(partition.topic, partition.index) is not partition:
                continue  # deleted between two slices
            try:
                work(partition)
            except StorageFailure as failure:
                logger.error("Maintenance of partition %s-%d failed: %s", partition.topic, partition.index, failure)
            await time_slice.checkpoint_if_over()


def _remove_all(filesystem: FileSystem, paths: list[str]) -> None:
    for path in paths:
        try:
            filesystem.remove(path)
        except StorageFailure as failure:
            logger.error("Could not delete a file of a deleted segment; retrying at the next start: %s", failure)
