"""Recovers logs that were found damaged at their first use, or could not be recovered at the start, while others serve.

Where there is no other replica, the new leader epoch is on the disk before anything is cut off: whenever the broker
dies, records that are gone and those that take their offsets are told apart. Until then every use of the log is
RecoveryNeeded, and a role that it cannot take waits; clients try again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import trio

from kbroker.errors import Refusal, StorageFailure
from kbroker.log import loading
from kbroker.log.partition_log import PartitionLog
from kbroker.log.recovery import LoadedLog
from kbroker.replication.partition import Partition
from kbroker.replication.partition_table import PartitionTable

__all__ = ["BumpLeaderEpochs", "recover_unsound"]

logger = logging.getLogger(__name__)

BumpLeaderEpochs = Callable[[Sequence[tuple[str, int]]], Awaitable[None]]


async def recover_unsound(table: PartitionTable, bump_leader_epochs: BumpLeaderEpochs) -> None:
    """About once a second; with nothing to do it costs nothing."""
    for directory in table.directories:
        gate = table.gates[directory.path]
        if gate.is_closed:
            continue
        waiting = {(each.topic, each.index) for each in table.waiting if table.directory_of(each) is directory}
        for key in sorted(waiting | directory.unsound):
            directory.unsound.discard(key)
            partition = table.replica(*key)
            if partition is None or not (partition.log.needs_recovery or partition in table.waiting):
                continue  # deleted meanwhile
            try:
                await _recover(table, partition, bump_leader_epochs)
                if partition in table.waiting and not partition.log.needs_recovery:
                    table.retell(*key)
            except Refusal as refusal:
                logger.error("%s-%d cannot be recovered yet: %s", *key, refusal.message)
            except (StorageFailure, FileNotFoundError) as failure:
                if partition.is_gone:
                    continue  # its files were taken away while they were read
                logger.error("%s-%d cannot be recovered: %s", *key, failure)
                if isinstance(failure, StorageFailure):
                    gate.close(failure)


async def _recover(table: PartitionTable, partition: Partition, bump_leader_epochs: BumpLeaderEpochs) -> None:
    log = partition.log
    if table.needs_new_epoch(partition):
        await bump_leader_epochs([(partition.topic, partition.index)])
    if not _is_wanted(partition, log):
        return
    loaded = await trio.to_thread.run_sync(_scan, log)
    if not _is_wanted(partition, log):
        _close(loaded)
        return
    loading.take(log, loaded)
    partition.on_recovered()
    fields = {"topic": partition.topic, "partition": partition.index, "log_end_offset": log.log_end_offset}
    text = "%s-%d was damaged and has been recovered: its next record gets offset %d, in leader epoch %d"
    epoch = partition.leader_epoch
    logger.warning(text, partition.topic, partition.index, log.log_end_offset, epoch, extra=fields)


def _is_wanted(partition: Partition, log: PartitionLog) -> bool:
    """It may have been deleted while others had their turn."""
    return not partition.is_gone and partition.log is log and log.needs_recovery


def _scan(log: PartitionLog) -> LoadedLog:
    loaded = loading.read_files(log, may_recover=True)
    if log.config.flush_messages == 1:
        try:
            for segment in loaded.segments:  # what was in memory only when the broker died must not be shown yet
                segment.file.open().sync()
        except BaseException:
            _close(loaded)
            raise
    return loaded


def _close(loaded: LoadedLog) -> None:
    for segment in loaded.segments:
        segment.close()
