"""Recovers damaged logs while the broker serves: those found damaged at first use, or not recovered at the start.

Without other replicas, the new leader epoch is stored before the log is truncated. So even after a crash in between,
lost records and new records at the same offsets have different epochs. Until the log is recovered, using it raises
RecoveryNeeded, the partition's role waits (`PendingRoles`), and clients retry.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import trio

from kbroker.errors import Refusal, StorageFailure
from kbroker.log.open_log import OpenLog
from kbroker.log.partition_log import PartitionLog
from kbroker.replication.assigned_replicas import AssignedReplicas
from kbroker.replication.partition import Partition

__all__ = ["BumpLeaderEpochs", "recover_unsound"]

logger = logging.getLogger(__name__)

BumpLeaderEpochs = Callable[[Sequence[tuple[str, int]]], Awaitable[None]]


async def recover_unsound(replicas: AssignedReplicas, bump_leader_epochs: BumpLeaderEpochs) -> None:
    """Recovers all damaged logs, and gives their partitions the roles that waited. Called about once a second."""
    log_dirs, roles = replicas.log_dirs, replicas.roles
    for directory in log_dirs.directories:
        gate = log_dirs.gates[directory.path]
        if gate.is_offline:
            continue
        waiting = {
            (partition.topic, partition.index)
            for partition in roles.waiting
            if log_dirs.directory_of(partition) is directory
        }
        for key in sorted(waiting | directory.unsound):
            directory.unsound.discard(key)
            partition = replicas.table.replica(*key)
            if partition is None or not (partition.log_handle.needs_recovery or partition in roles.waiting):
                continue  # deleted or recovered since
            try:
                await _recover(replicas, partition, bump_leader_epochs)
                if partition in roles.waiting and not partition.log_handle.needs_recovery:
                    replicas.republish(*key)
            except Refusal as refusal:
                logger.error("Could not recover the log of %s-%d yet; retrying: %s", *key, refusal.message)
            except (StorageFailure, FileNotFoundError) as failure:
                if partition.is_gone:
                    continue  # its files were deleted during the scan
                logger.error("Could not recover the log of %s-%d: %s", *key, failure)
                if isinstance(failure, StorageFailure):
                    gate.close(failure)


async def _recover(replicas: AssignedReplicas, partition: Partition, bump_leader_epochs: BumpLeaderEpochs) -> None:
    handle = partition.log_handle
    if replicas.roles.needs_new_epoch(partition):
        await bump_leader_epochs([(partition.topic, partition.index)])
    if not _still_needs_recovery(partition, handle):
        return
    gate = replicas.log_dirs.gate_of(partition)
    scanned = await trio.to_thread.run_sync(gate.with_reserve, _scan, handle)
    if not _still_needs_recovery(partition, handle):
        scanned.close_files()
        return
    log = handle.adopt(scanned)
    partition.on_recovered()
    fields = {"topic": partition.topic, "partition": partition.index, "log_end_offset": log.log_end_offset}
    text = "Recovered the damaged log of %s-%d: log end offset %d, leader epoch %d"
    epoch = partition.leader_epoch
    logger.warning(text, partition.topic, partition.index, log.log_end_offset, epoch, extra=fields)


def _still_needs_recovery(partition: Partition, handle: PartitionLog) -> bool:
    """Whether to go on: during every await the partition may be deleted, or its log replaced."""
    return not partition.is_gone and partition.log_handle is handle and handle.needs_recovery


def _scan(handle: PartitionLog) -> OpenLog:
    log = handle.scan()
    if log.config.flush_messages == 1:
        try:
            # With flush.messages=1 consumers see fsynced records only; the crash may have left others.
            for segment in log.segments:
                segment.file.open().sync()
        except BaseException:
            log.close_files()
            raise
    return log
