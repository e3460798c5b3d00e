"""The replicas that the controller's image assigns to this broker: opens their logs, gives them roles, deletes them.

Never decides which partitions exist, nor which broker leads them: the image does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Sequence

from kbroker.clock import Clock
from kbroker.config.broker import BrokerConfig
from kbroker.config.topic import TopicConfig, topic_config
from kbroker.controller.changes import Change, PartitionsChanged, TopicAdded, TopicConfigsChanged, TopicRemoved
from kbroker.controller.image import Image, PartitionState, TopicImage
from kbroker.errors import RecoveryNeeded, StorageFailure
from kbroker.log.log_config import LogConfig
from kbroker.log.producers.refused_batches import RefusedBatches
from kbroker.names import TopicPartition
from kbroker.replication.fetch_waiters import FetchWakeups
from kbroker.replication.flusher import Flusher
from kbroker.replication.log_dirs import LogDirs
from kbroker.replication.partition import Partition
from kbroker.replication.partition_table import PartitionTable
from kbroker.replication.peers import Peers
from kbroker.replication.pending_roles import PendingRoles
from kbroker.replication.replica_moves import ReplicaMoves
from kbroker.replication.replication_quota import leader_quota
from kbroker.replication.startup_recovery import recover_logs
from kbroker.replication.stray_logs import find_strays
from kbroker.replication.topic_log_config import log_config

__all__ = ["AssignedReplicas"]

logger = logging.getLogger(__name__)


class AssignedReplicas:
    def __init__(
        self,
        log_dirs: LogDirs,
        *,
        broker_id: int,
        config: BrokerConfig,
        flusher: Flusher,
        clock: Clock,
        random_name: Callable[[], str],
        peers: Peers | None = None,
    ) -> None:
        self.table = PartitionTable()
        self.log_dirs = log_dirs
        self.moves = ReplicaMoves(log_dirs, random_name)
        self.peers = peers or Peers(broker_id, clock, config.replica_lag_time_max_ms)
        self.peers.leader_quota = leader_quota(config, clock, broker_id)
        self.roles = PendingRoles(broker_id)
        self.refused = RefusedBatches()
        self.fetch_wakeups = FetchWakeups(clock)
        self.dirty: set[Partition] = set()
        """Partitions that were written to since maintenance looked at them."""
        self.republish: Callable[[str, int], None] = lambda topic, index: None
        """Reports a partition's state once more to all listeners of the image, this object included."""
        self._broker_id = broker_id
        self._config = config
        self._flusher = flusher
        self._clock = clock
        self._incomplete: dict[str, TopicImage] = {}  # topics with partitions whose logs could not be opened
        self._recreated: list[tuple[str, int]] = []  # partitions of a single node whose logs were lost

    # Following the image

    async def prepare(self, topics: Sequence[TopicImage]) -> None:
        """Creates the directories of partitions that the next image will have, in a thread."""
        assigned = [
            (topic, index)
            for topic in topics
            for index, state in enumerate(topic.partitions)
            if self._broker_id in state.replicas
        ]
        await self.log_dirs.prepare(assigned)

    def on_image(self, image: Image, changes: Sequence[Change]) -> None:
        if image.brokers.keys() != self.peers.live:
            self._on_brokers(image)
        for change in changes:
            match change:
                case TopicAdded(topic):
                    self._assign(topic, range(len(topic.partitions)))
                case TopicRemoved(topic):
                    self._remove_topic(topic)
                case PartitionsChanged(name, changed):
                    self._assign(image.topics[name], sorted(changed))
                case TopicConfigsChanged(name, configs):
                    self._update_configs(name, topic_config(self._config, configs))

    def _on_brokers(self, image: Image) -> None:
        """Updates the live brokers. A broker that is no longer alive may have held back the high watermark."""
        self.peers.live = image.brokers.keys()
        for partition in list(self.peers.replicated):
            partition.update_high_watermark()
            if partition.leadership is not None:
                partition.leadership.check_log_starts()

    def _assign(self, topic: TopicImage, indexes: Iterable[int]) -> None:
        config = topic_config(self._config, topic.configs)
        for_log = log_config(config, self._config)
        self.table.add_topic(topic)
        if self._incomplete.pop(topic.name, None) is not None:
            indexes = range(len(topic.partitions))
        for index in indexes:
            state = topic.partitions[index]
            partition = self.table.replica(topic.name, index)
            if self._broker_id not in state.replicas:
                if partition is not None:
                    self._delete(partition)
                continue
            if partition is None and self._is_offline(topic.name, index, state):
                continue
            try:
                if partition is None:
                    partition = self._open(topic, index, config, for_log)
                gate = self.log_dirs.gate_of(partition)
                gate.with_reserve(self._give_role, partition, state)
            except RecoveryNeeded:
                assert partition is not None
                self.roles.waiting[partition] = state
            except StorageFailure as failure:
                logger.error("Could not open the log of %s-%d: %s", topic.name, index, failure)
                self._incomplete[topic.name] = topic

    def _is_offline(self, topic: str, index: int, state: PartitionState) -> bool:
        """Whether the replica, which is not open, must stay so: its data directory is broken, or its log is lost.

        A log is lost if its directory has disappeared since the broker stopped. In a cluster a replica of the ISR
        counts as complete and can be elected: as a leader, an empty log would make all followers delete their records.
        Kafka creates it. Outside the ISR the replica is created again and copies the log from the leader.
        """
        log_dirs = self.log_dirs
        if log_dirs.check_offline(topic, index):
            is_complete = self._broker_id in state.isr or state.leader == self._broker_id
            return is_complete or not log_dirs.release_lost(topic, index)
        end_offset = log_dirs.lost_end_offset(topic, index)
        if not end_offset:
            return False
        if not self._config.zookeeper_connect:
            self._recreated.append((topic, index))
            consequence = "created an empty log, the records are lost"
        elif self._broker_id in state.isr:
            log_dirs.keep_offline(topic, index)
            consequence = (
                "the replica stays offline, because it counts as in sync. Restore the directory, or create it empty to "
                "accept the loss, and restart the broker"
            )
        else:
            consequence = "copying the log from the leader"
        text = "The directory of partition %s-%d has disappeared; its last known end offset is %d: %s"
        fields = {"topic": topic, "partition": index, "end_offset": end_offset}
        logger.warning(text, topic, index, end_offset, consequence, extra=fields)
        return log_dirs.is_offline(topic, index)

    def _open(self, topic: TopicImage, index: int, config: TopicConfig, for_log: LogConfig) -> Partition:
        log, gate = self.log_dirs.open_log(topic, index, for_log)
        return Partition(
            topic.name,
            index,
            topic.id,
            log,
            config,
            gate=gate,
            flusher=self._flusher,
            dirty=self.dirty,
            refused=self.refused,
            wakeups=self.fetch_wakeups,
        )

    def _give_role(self, partition: Partition, state: PartitionState) -> None:
        """Makes the partition a leader or follower. Raises StorageFailure if its log cannot be read."""
        # Hidden first: requests that are completed during the change, or after a failure, must find no leader here.
        self.table.set_follower(partition)
        if not self.roles.postpone(partition, state):
            if state.leader == self._broker_id:
                partition.become_leader(state, self.peers)
            else:
                partition.become_follower(state, self.peers)
        if partition.is_leader:
            self.table.set_leader(partition)
            self.roles.on_leader(partition)

    def _delete(self, partition: Partition) -> None:
        """Deletes the replica: the partition was reassigned to other brokers."""
        self.table.remove(partition)
        self._end(partition)
        self.moves.cancel((partition.topic, partition.index))
        self.log_dirs.delete_log(partition.topic, partition.index)

    def _end(self, partition: Partition) -> None:
        self.roles.remove(partition)
        self.peers.replicated.pop(partition, None)
        partition.leave()

    def _remove_topic(self, topic: TopicImage) -> None:
        self._incomplete.pop(topic.name, None)
        for partition in self.table.remove_topic(topic):
            self._end(partition)
        for index in range(len(topic.partitions)):
            self.moves.cancel((topic.name, index))
        self.log_dirs.on_topic_deleted(topic)

    def _update_configs(self, name: str, config: TopicConfig) -> None:
        for_log = log_config(config, self._config)
        for partition in self.table.replicas_of(name):
            partition.log_handle.update_config(for_log)
            partition.update_config(config)

    # Logs from before the start, of replicas that this broker does not have any more

    def delete_unassigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Deletes logs of deleted topics that were not opened: the topics were marked for deletion at the start."""
        for topic, index in partitions:
            if self.table.replica(topic, index) is None:
                self.log_dirs.delete_log(topic, index)

    def rename_strays(self, image: Image, existing: Container[str]) -> None:
        """`existing`: as in `find_strays`."""
        not_open = [key for key in self.log_dirs.found if self.table.replica(*key) is None]
        for topic, index in find_strays(not_open, image, existing, self._broker_id):
            self.log_dirs.rename_stray(topic, index)

    # Maintenance, about once a second

    def retire_offline(self) -> bool:
        """Stops serving partitions of a directory that broke while others work, as if it was broken at the start.

        Returns whether there is such a directory.
        """
        broken = self.log_dirs.broken_paths()
        if not broken:
            return False
        for partition in list(self.table):
            if self.log_dirs.directory_of(partition).path in broken:
                self.log_dirs.mark_offline(partition)
                self.table.remove(partition)
                self.moves.cancel((partition.topic, partition.index))
                self._end(partition)
        return True

    def open_missing(self) -> None:
        """Retries to open logs that could not be opened, for example because the disk was full."""
        for topic in list(self._incomplete.values()):
            indexes = range(len(topic.partitions))
            missing = [index for index in indexes if self.table.replica(topic.name, index) is None]
            self._assign(topic, indexes)
            for index in missing:
                if self.table.replica(topic.name, index) is not None:
                    # Fetchers and coordinators did not find the partition when the image changed.
                    self.republish(topic.name, index)

    # Starting and stopping

    async def recover(self) -> list[tuple[str, int]]:
        """Recovers logs after an unclean shutdown. Returns the partitions that need a new leader epoch.

        These are all recovered partitions without other replicas, even if nothing was truncated: a log that lost whole
        batches looks like an intact one; and partitions of a single node whose logs have disappeared. With other
        replicas the controller's election gives a new epoch, and roles in the old one are postponed (`PendingRoles`).
        """
        self.log_dirs.on_started()
        self.roles.on_started()
        unclean = [partition for partition in self.table if partition.log_handle.needs_recovery]
        if unclean:
            await recover_logs(unclean, self.log_dirs, self._clock)
        self.roles.note_pre_crash_epochs(unclean)
        self._give_deferred_roles()
        return self._recreated + [
            (partition.topic, partition.index)
            for partition in unclean
            if partition.log_handle.opened is not None and partition.is_leader and not partition.leadership
        ]

    def _give_deferred_roles(self) -> None:
        for partition, state in self.roles.pop_deferred().items():
            if partition.is_gone:
                continue
            try:
                self.log_dirs.gate_of(partition).with_reserve(self._give_role, partition, state)
            except RecoveryNeeded:
                self.roles.waiting[partition] = state
            except StorageFailure as failure:
                logger.error("Could not open the log of %s-%d: %s", partition.topic, partition.index, failure)

    def answer_waiters(self) -> None:
        """Completes all delayed fetches with the records available now. Called before the broker stops."""
        for partition in self.table:
            for waiter in partition.waiters():
                waiter.finish()

    def close(self) -> None:
        """Flushes and closes all logs. Blocks: call it after the tasks of the event loop have ended."""
        self.moves.close()
        self.log_dirs.close()
