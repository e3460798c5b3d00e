"""What has to be done now and then: retention, flushes by time, checkpoints, expired producers, deleted files, logs
that turned out to be damaged; and quotas forget who is idle.

Work over many partitions is cut into slices of about 2 ms, so that requests wait for none of it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

import trio

from kbroker.clock import Clock
from kbroker.config import BrokerConfig
from kbroker.errors import StorageFailure
from kbroker.log.filesystem import FileSystem
from kbroker.log.log_config import UNLIMITED
from kbroker.replication.flusher import Flusher
from kbroker.replication.late_recovery import BumpLeaderEpochs, recover_unsound
from kbroker.replication.partition import Partition
from kbroker.replication.partition_table import PartitionTable
from kbroker.server.quotas import Quotas

__all__ = ["Maintenance"]

logger = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_SLICE_SECONDS = 0.002
_REMOVED_AT_ONCE = 16


class Maintenance:
    def __init__(
        self,
        table: PartitionTable,
        flusher: Flusher,
        config: BrokerConfig,
        clock: Clock,
        quotas: Quotas,
        bump_leader_epochs: BumpLeaderEpochs,
    ) -> None:
        self._bump_leader_epochs = bump_leader_epochs
        self._quotas = quotas
        self._table = table
        self._flusher = flusher
        self._config = config
        self._clock = clock

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tick)
            config = self._config
            nursery.start_soon(self._every, config.log_retention_check_interval_ms, self._apply_retention)
            nursery.start_soon(self._every, config.log_flush_offset_checkpoint_interval_ms, self._checkpoint)
            nursery.start_soon(self._every, config.producer_id_expiration_check_interval_ms, self._expire_producers)

    async def _tick(self) -> None:
        while True:
            await trio.sleep(_TICK_SECONDS)
            for gate in self._table.gates.values():
                gate.tick()
            dirty = list(self._table.dirty)
            await self._sliced(dirty, self._flush_if_due)
            self._table.retire_offline()
            self._table.open_missing()
            await recover_unsound(self._table, self._bump_leader_epochs)
            self._quotas.forget_idle()
            await self._purge_deleted()

    async def _every(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await trio.sleep(max(interval_ms, 1) / 1000)
            try:
                await work()
            except StorageFailure as failure:
                logger.error("maintenance failed, and is tried again in %d ms: %s", interval_ms, failure)

    async def _purge_deleted(self) -> None:
        for directory in self._table.directories:
            if directory.has_deleted and (paths := directory.take_purgeable()):
                try:
                    await trio.to_thread.run_sync(directory.remove_directories, paths)
                except StorageFailure as failure:
                    logger.error("a deleted partition is left behind until the next start: %s", failure)

    def _flush_if_due(self, partition: Partition) -> None:
        log = partition.log
        if log.is_flush_due(self._clock.now_ms()):
            self._flusher.request(partition)
        elif log.config.flush_ms == UNLIMITED or log.recovery_point >= log.log_end_offset:
            # Nothing will be due before something is appended again.
            self._table.dirty.discard(partition)

    async def _apply_retention(self) -> None:
        removable: list[str] = []

        def apply_to(partition: Partition) -> None:
            now_ms = self._clock.now_ms()
            partition.log.apply_retention(now_ms)
            removable.extend(partition.log.take_deleted(now_ms))

        await self._sliced(self._table, apply_to)
        await self._remove(removable)

    async def _remove(self, paths: list[str]) -> None:
        """In a thread: a large file can take its disk seconds. A few at a time, for the thread has to end with us; what
        is left is found at the next start."""
        filesystem = self._table.directories[0].files.filesystem
        for start in range(0, len(paths), _REMOVED_AT_ONCE):
            await trio.to_thread.run_sync(_remove_all, filesystem, paths[start : start + _REMOVED_AT_ONCE])

    async def _expire_producers(self) -> None:
        await self._sliced(self._table, self._expire_producers_of)

    def _expire_producers_of(self, partition: Partition) -> None:
        if partition.log.is_loaded:
            partition.log.producers.expire(self._clock.now_ms(), self._config.producer_id_expiration_ms)

    async def _checkpoint(self) -> None:
        await self._table.checkpoint()

    async def _sliced(self, partitions: Iterable[Partition], work: Callable[[Partition], None]) -> None:
        began = self._clock.monotonic()
        for partition in list(partitions):
            if self._table.replica(partition.topic, partition.index) is not partition:
                continue  # deleted while others had their slice
            try:
                work(partition)
            except StorageFailure as failure:
                logger.error("maintenance of %s-%d failed: %s", partition.topic, partition.index, failure)
            if self._clock.monotonic() - began > _SLICE_SECONDS:
                await trio.lowlevel.checkpoint()
                began = self._clock.monotonic()


def _remove_all(filesystem: FileSystem, paths: list[str]) -> None:
    for path in paths:
        try:
            filesystem.remove(path)
        except StorageFailure as failure:
            logger.error("a file of a deleted segment is left behind until the next start: %s", failure)
