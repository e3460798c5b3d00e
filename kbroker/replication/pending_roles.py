"""Roles that partitions cannot take yet, and leader epochs that this broker must not lead in again.

    deferred   during the start: partitions with other replicas, until damaged logs are recovered
    waiting    later: until background recovery is done with the log, or the leader epoch is bumped

Pure. Never gives a role: the partition table does.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.controller.image import PartitionState
from kbroker.replication.partition import Partition

__all__ = ["PendingRoles"]


class PendingRoles:
    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._is_starting = True
        self._deferred: dict[Partition, PartitionState] = {}
        self.waiting: dict[Partition, PartitionState] = {}
        self._pre_crash_epochs: dict[Partition, int] = {}
        """Leader epochs that the image had at the start, for damaged logs: this broker may have led in them."""

    def postpone(self, partition: Partition, state: PartitionState) -> bool:
        """Stores the role and returns True if the partition cannot take it yet. Replaces a role that is waiting."""
        self.waiting.pop(partition, None)
        if self._is_starting and len(state.replicas) > 1:
            self._deferred[partition] = state  # recovery of the log may be needed, and runs in a thread
            return True
        if self._must_wait(partition, state):
            self.waiting[partition] = state
            return True
        return False

    def _must_wait(self, partition: Partition, state: PartitionState) -> bool:
        if state.leader == self._broker_id and self._is_pre_crash(partition, state):
            return True
        return len(state.replicas) > 1 and partition.log_handle.needs_recovery

    def _is_pre_crash(self, partition: Partition, state: PartitionState) -> bool:
        """Whether this broker may have led in this epoch before it crashed.

        Leading in the epoch again could put different records at offsets that the crash lost, under the same epoch:
        followers and consumers that have the lost records could not detect the divergence.
        """
        return state.leader_epoch <= self._pre_crash_epochs.get(partition, -1)

    def needs_new_epoch(self, partition: Partition) -> bool:
        """Whether the leader epoch must be bumped before the log is recovered.

        Not with other replicas and a waiting role: then the controller elected this broker in a new epoch, and
        followers truncate to the leader's history.
        """
        state = self.waiting.get(partition)
        if state is None:
            return partition.is_leader
        return len(state.replicas) == 1 or self._is_pre_crash(partition, state)

    def on_leader(self, partition: Partition) -> None:
        """Notes that the partition leads, in an epoch after the crash."""
        self._pre_crash_epochs.pop(partition, None)

    def remove(self, partition: Partition) -> None:
        self.waiting.pop(partition, None)
        self._pre_crash_epochs.pop(partition, None)

    # The start

    def on_started(self) -> None:
        """Ends the deferring of roles. Roles deferred so far stay until `pop_deferred`."""
        self._is_starting = False

    def note_pre_crash_epochs(self, damaged: Iterable[Partition]) -> None:
        """Remembers the epochs of partitions whose logs were damaged. Call it before `pop_deferred`.

        Leaders are left out: without other replicas they lead already, and the caller bumps their epochs.
        """
        for partition in damaged:
            if not partition.is_leader:
                state = self._deferred.get(partition)
                self._pre_crash_epochs[partition] = partition.leader_epoch if state is None else state.leader_epoch

    def pop_deferred(self) -> dict[Partition, PartitionState]:
        deferred, self._deferred = self._deferred, {}
        return deferred
