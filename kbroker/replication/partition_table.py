"""Every partition that this broker has a replica of, found by name and number; follows the controller's image.

Opens the data directories, gives each partition its log and its role, recovers after a crash. Never decides which
partitions there are, nor who leads them: the image does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import trio

from kbroker.clock import Clock
from kbroker.config import BrokerConfig, TopicConfig, topic_config
from kbroker.controller.changes import Change, PartitionsChanged, TopicAdded, TopicConfigsChanged, TopicRemoved
from kbroker.controller.image import Image, Topic
from kbroker.controller.image import Partition as PartitionState
from kbroker.errors import RecoveryNeeded, StorageFailure
from kbroker.log.directory import DataDirectory
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.replication.flusher import Flusher
from kbroker.replication.partition import Partition
from kbroker.replication.peers import Peers
from kbroker.replication.replica_moves import Move, ReplicaMoves
from kbroker.replication.storage_gate import StorageGate

__all__ = ["PartitionTable", "log_config"]

logger = logging.getLogger(__name__)

_WORTH_A_THREAD = 16
"""So many directories; fewer are made on the loop before a thread has begun."""


class PartitionTable:
    def __init__(
        self,
        directories: Sequence[DataDirectory],
        *,
        broker_id: int,
        config: BrokerConfig,
        flusher: Flusher,
        clock: Clock,
        random_name: Callable[[], str],
        broken: Mapping[str, StorageFailure] = MappingProxyType({}),
        peers: Peers | None = None,
    ) -> None:
        """`broken`: data directories that cannot be used, and why."""
        self.directories = directories
        self.peers = peers or Peers(broker_id, clock, config.replica_lag_time_max_ms)
        self.gates = {path: StorageGate(path) for path in (*(each.path for each in directories), *broken)}
        for path, failure in broken.items():
            self.gates[path].close(failure)
        self._offline: set[tuple[str, int]] = set()  # partitions whose directory broke, now or before the start
        self._retired: set[str] = set()
        self.dirty: set[Partition] = set()
        self._broker_id = broker_id
        self._config = config
        self._flusher = flusher
        self._clock = clock
        self._random_name = random_name
        self._topics: dict[str, list[Partition | None]] = {}  # those that are led here
        self.followers: dict[tuple[str, int], Partition] = {}
        self._names_by_id: dict[bytes, str] = {}
        self._directory_of, self._contested = _directories_by_partition(directories, random_name)
        self._held: dict[DataDirectory, int] = {directory: len(directory.partitions) for directory in directories}
        self.moves = ReplicaMoves(self, random_name)
        self._incomplete: dict[str, Topic] = {}  # some of their partitions could not be opened
        self._prepared: dict[tuple[bytes, int], DataDirectory] = {}  # by topic id: directories that have been made
        self._is_starting = True
        self._deferred: dict[Partition, PartitionState] = {}
        self.waiting: dict[Partition, PartitionState] = {}
        """Roles that their logs cannot take yet: see `late_recovery`."""
        self._spent_epochs: dict[Partition, int] = {}  # in which this broker may have led before it died
        self.retell: Callable[[str, int], None] = lambda topic, index: None
        """Lets all who follow the image, this table too, hear of a partition once more."""
        self._checkpointing = trio.Lock()

    def __iter__(self) -> Iterator[Partition]:
        """In whatever role."""
        for partitions in self._topics.values():
            for partition in partitions:
                if partition is not None:
                    yield partition
        yield from self.followers.values()

    def replica(self, topic: str, index: int) -> Partition | None:
        """In whatever role."""
        return self.get(topic, index) or self.followers.get((topic, index))

    def get(self, topic: str, index: int) -> Partition | None:
        """If it is led here. Hot path."""
        partitions = self._topics.get(topic)
        if partitions is None or not 0 <= index < len(partitions):
            return None
        return partitions[index]

    @property
    def has_offline(self) -> bool:
        return bool(self._offline)

    def is_offline(self, topic: str, index: int) -> bool:
        """Whether this broker has the partition, in a data directory that is broken."""
        return (topic, index) in self._offline

    def topic_name(self, topic_id: bytes) -> str | None:
        return self._names_by_id.get(topic_id)

    # Following the image

    async def prepare(self, topics: Sequence[Topic]) -> None:
        """Makes the directories of partitions to come, in a thread: ten thousand take the disk a second or two.

        A name that is held already is left to `on_image`, which knows what to do with left-overs; so is what fails.
        """
        self._prepared.clear()
        coming = [
            (topic, index)
            for topic in topics
            for index, state in enumerate(topic.partitions)
            if self._broker_id in state.replicas
            and (topic.name, index) not in self._directory_of
            and (topic.name, index) not in self._offline
        ]
        if len(coming) >= _WORTH_A_THREAD:
            made = await trio.to_thread.run_sync(_make_directories, self._spread(coming))
            self._prepared = {(topic.id, index): directory for directory, topic, index in made}

    def _spread(self, coming: list[tuple[Topic, int]]) -> list[tuple[DataDirectory, Topic, int]]:
        held = dict(self._held)
        try:
            spread = []
            for topic, index in coming:
                directory = self._directory_for_new(topic.name, index)
                self._held[directory] += 1
                spread.append((directory, topic, index))
            return spread
        finally:
            self._held = held

    def on_image(self, image: Image, changes: Sequence[Change]) -> None:
        if image.brokers.keys() != self.peers.live:
            self._on_brokers(image)
        for change in changes:
            match change:
                case TopicAdded(topic):
                    self._add(topic, range(len(topic.partitions)))
                case TopicRemoved(topic):
                    self._remove(topic)
                case PartitionsChanged(name, changed):
                    self._add(image.topics[name], sorted(changed))
                case TopicConfigsChanged(name, configs):
                    self._reconfigure(name, topic_config(self._config, configs))

    def _on_brokers(self, image: Image) -> None:
        """A replica that is no longer alive may have held back the high watermark."""
        self.peers.live = image.brokers.keys()
        for partition in list(self.peers.replicated):
            partition.update_high_watermark()
            if partition.leadership is not None:
                partition.leadership.check_log_starts()

    def _add(self, topic: Topic, indexes: Iterable[int]) -> None:
        config = topic_config(self._config, topic.configs)
        for_log = log_config(config, self._config)
        led = self._topics.setdefault(topic.name, [])
        led += [None] * (len(topic.partitions) - len(led))
        self._names_by_id[topic.id] = topic.name
        if self._incomplete.pop(topic.name, None) is not None:
            indexes = range(len(topic.partitions))
        for index in indexes:
            state = topic.partitions[index]
            partition = led[index] or self.followers.get((topic.name, index))
            if self._broker_id not in state.replicas:
                if partition is not None:
                    self._drop(partition)
                continue
            if partition is None and self._is_out_of_reach(topic.name, index):
                continue
            try:
                if partition is None:
                    partition = self._open(topic, index, config, for_log)
                self._give_role(partition, state)
            except RecoveryNeeded:
                assert partition is not None
                self.waiting[partition] = state
            except StorageFailure as failure:
                logger.error("%s-%d cannot be opened: %s", topic.name, index, failure)
                self._incomplete[topic.name] = topic

    def _give_role(self, partition: Partition, state: PartitionState) -> None:
        key = (partition.topic, partition.index)
        led = self._topics[partition.topic]
        # Whoever is answered while it changes, or if its log cannot be read, finds no leader here.
        led[partition.index] = None
        self.followers[key] = partition
        self.waiting.pop(partition, None)
        if self._is_starting and len(state.replicas) > 1:
            self._deferred[partition] = state  # its log may want to be recovered first, which takes a thread
        elif self._has_to_wait(partition, state):
            self.waiting[partition] = state
        elif state.leader == self._broker_id:
            partition.become_leader(state, self.peers)
        else:
            partition.become_follower(state, self.peers)
        if partition.is_leader:
            led[partition.index] = self.followers.pop(key)
            self._spent_epochs.pop(partition, None)

    def _has_to_wait(self, partition: Partition, state: PartitionState) -> bool:
        if state.leader == self._broker_id and self._is_spent(partition, state):
            return True
        return len(state.replicas) > 1 and partition.log.needs_recovery

    def _is_spent(self, partition: Partition, state: PartitionState) -> bool:
        """It led in this epoch before it died: what it lost then must not get other records' offsets in the same."""
        return state.leader_epoch <= self._spent_epochs.get(partition, -1)

    def needs_new_epoch(self, partition: Partition) -> bool:
        """Before it is recovered. Where there are other replicas a role that was not taken yet has an epoch of its own,
        and followers are cut to their leader's history."""
        state = self.waiting.get(partition)
        if state is None:
            return partition.is_leader
        return len(state.replicas) == 1 or self._is_spent(partition, state)

    def _drop(self, partition: Partition) -> None:
        """No replica is to be here any more."""
        key = (partition.topic, partition.index)
        self._topics[partition.topic][partition.index] = None
        self.followers.pop(key, None)
        self._leave(partition)
        self._delete(*key)

    def _leave(self, partition: Partition) -> None:
        self.waiting.pop(partition, None)
        self._spent_epochs.pop(partition, None)
        self.peers.replicated.pop(partition, None)
        partition.leave()

    def _delete(self, topic: str, index: int) -> None:
        self.moves.cancel((topic, index))
        directory = self._directory_of.pop((topic, index), None)
        if directory is not None:
            self._held[directory] -= 1
            try:
                directory.delete_log(topic, index, self._random_name())
            except StorageFailure as failure:
                logger.error("%s-%d cannot be deleted: %s", topic, index, failure)

    def _is_out_of_reach(self, topic: str, index: int) -> bool:
        """What is not found at the start may be in a directory that is broken: to make it anew would lose it."""
        key = (topic, index)
        if self._is_starting and key not in self._directory_of and len(self.gates) > len(self.directories):
            self._offline.add(key)
        return key in self._offline

    def retire_offline(self) -> None:
        """About once a second: the partitions of a directory that broke while others are whole are served no more, just
        as if it had been broken at the start."""
        broken = {path for path, gate in self.gates.items() if gate.is_offline}
        if broken == self._retired or len(broken) == len(self.gates):
            return
        self._retired = broken
        for partition in list(self):
            key = (partition.topic, partition.index)
            if self._directory_of[key].path in broken:
                self._offline.add(key)
                self._topics[partition.topic][partition.index] = None
                self.followers.pop(key, None)
                self.moves.cancel(key)
                self._leave(partition)

    def open_missing(self) -> None:
        """About once a second: what a full disk did not let us open may go now."""
        for topic in list(self._incomplete.values()):
            indexes = range(len(topic.partitions))
            missing = [index for index in indexes if self.replica(topic.name, index) is None]
            self._add(topic, indexes)
            for index in missing:
                if self.replica(topic.name, index) is not None:
                    self.retell(topic.name, index)  # others have looked for it in vain

    def _open(self, topic: Topic, index: int, config: TopicConfig, for_log: LogConfig) -> Partition:
        key = (topic.name, index)
        if key in self._contested:
            self._settle(topic, index)
        directory = self._directory_of.get(key)
        if directory is not None and self._is_left_over(directory, topic, index):
            directory.delete_log(topic.name, index, self._random_name())
            self._held[directory] -= 1
            directory = None
        if directory is None:
            prepared = self._prepared.pop((topic.id, index), None)
            if prepared is not None:
                directory = prepared
                log = directory.create_prepared_log(topic.name, index, for_log)
            else:
                directory = self._directory_for_new(topic.name, index)
                log = directory.create_log(topic.name, index, topic.id, for_log)
            self._held[directory] += 1
            self._directory_of[key] = directory
        else:
            log = directory.open_log(topic.name, index, for_log)
        return Partition(
            topic.name,
            index,
            topic.id,
            log,
            config,
            gate=self.gates[directory.path],
            flusher=self._flusher,
            dirty=self.dirty,
        )

    def _settle(self, topic: Topic, index: int) -> None:
        """Logs of one name and several topics: a broken directory is back, and the topic was made anew meanwhile."""
        key = (topic.name, index)
        del self._directory_of[key]
        for directory in self._contested.pop(key):
            if directory.topic_id(*key) == topic.id:
                self._directory_of[key] = directory
            else:
                directory.delete_log(*key, self._random_name())
                self._held[directory] -= 1

    def _directory_for_new(self, topic: str, index: int) -> DataDirectory:
        """Where somebody wanted it, else where the fewest are."""
        online = [each for each in self.directories if not self.gates[each.path].is_offline]
        preferred = self.moves.take_preferred(topic, index)
        if preferred in online:
            return preferred
        return min(online or self.directories, key=self._held.__getitem__)

    # For `moves`

    def directory_of(self, partition: Partition) -> DataDirectory:
        return self._directory_of[partition.topic, partition.index]

    def count_replica(self, directory: DataDirectory, difference: int) -> None:
        self._held[directory] += difference

    def on_moved(self, move: Move, log: PartitionLog) -> None:
        self._directory_of[move.key] = move.target
        self._held[move.source] -= 1
        move.partition.replace_log(log, self.gates[move.target.path])

    def _is_left_over(self, directory: DataDirectory, topic: Topic, index: int) -> bool:
        """A directory of a deleted topic of the same name. After a clean stop there is none, and nobody looks; unless
        it may have been out of reach when the topic was deleted."""
        if self._is_starting and directory.was_clean and len(self.gates) == 1:
            return False
        return directory.topic_id(topic.name, index) not in (None, topic.id)

    def _remove(self, topic: Topic) -> None:
        self._names_by_id.pop(topic.id, None)
        self._incomplete.pop(topic.name, None)
        partitions = [
            *self._topics.pop(topic.name, []),
            *(self.followers.pop((topic.name, index), None) for index in range(len(topic.partitions))),
        ]
        for partition in partitions:
            if partition is not None:
                self._leave(partition)
        for index in range(len(topic.partitions)):
            self._offline.discard((topic.name, index))
            self._delete(topic.name, index)

    def _reconfigure(self, name: str, config: TopicConfig) -> None:
        for_log = log_config(config, self._config)
        for index in range(len(self._topics.get(name, ()))):
            if (partition := self.replica(name, index)) is not None:
                partition.log.update_config(for_log)
                partition.update_config(config)

    # Starting and stopping

    async def recover(self) -> list[tuple[str, int]]:
        """After a crash: scan what may be torn, in one thread. Returns the partitions that need a new leader epoch.

        Those are all that were scanned and have no other replica: a log that lost whole batches looks like one that
        lost nothing. In a cluster the controller gives new ones by its elections, and the old ones are not taken. Not
        in several threads: all logs share one cache of open files, which knows none.
        """
        self._is_starting = False
        unclean = [each for each in self if each.log.needs_recovery]
        if unclean:
            logger.warning("recovering %d partitions after an unclean stop", len(unclean))
            began = self._clock.monotonic()
            for chunk in _chunks(unclean, 64):
                await self._recover_chunk(chunk)
            logger.info("recovered %d partitions in %.2f s", len(unclean), self._clock.monotonic() - began)
        for each in unclean:
            if not each.is_leader:
                self._spent_epochs[each] = (
                    self._deferred[each].leader_epoch if each in self._deferred else each.leader_epoch
                )
        self._give_deferred_roles()
        return [
            (each.topic, each.index)
            for each in unclean
            if each.log.is_loaded and each.is_leader and not each.leadership
        ]

    def _give_deferred_roles(self) -> None:
        deferred, self._deferred = self._deferred, {}
        for partition, state in deferred.items():
            if not partition.is_gone:
                try:
                    self._give_role(partition, state)
                except RecoveryNeeded:
                    self.waiting[partition] = state
                except StorageFailure as failure:
                    logger.error("%s-%d cannot be opened: %s", partition.topic, partition.index, failure)

    async def _recover_chunk(self, partitions: list[Partition]) -> None:
        logs = [each.log for each in partitions]
        failures = await trio.to_thread.run_sync(_load_all, logs, self._clock.now_ms())
        for partition, failure in zip(partitions, failures, strict=True):
            if failure is not None:
                self.gates[self._directory_of[partition.topic, partition.index].path].close(failure)
            else:
                partition.on_recovered()
                if partition.log.was_shortened:
                    _tell_cut(partition)

    async def checkpoint(self) -> None:
        """Recovery points, high watermarks and log starts to disk. One at a time: they are files with fixed names."""
        async with self._checkpointing:
            for directory in self.directories:
                gate = self.gates[directory.path]
                if gate.is_offline:
                    continue
                try:
                    await trio.to_thread.run_sync(directory.write_checkpoints, directory.take_checkpoints())
                except StorageFailure as failure:  # of this directory alone
                    if failure.is_full:
                        logger.error("the checkpoints of %s are tried again later: %s", directory.path, failure)
                    else:
                        gate.close(failure)

    async def checkpoint_cleaner(self, directory: DataDirectory) -> None:
        """How far the logs of a directory are compacted, to disk."""
        async with self._checkpointing:
            if checkpoint := directory.take_cleaner_checkpoint():
                await trio.to_thread.run_sync(directory.write_checkpoints, checkpoint)

    def answer_waiters(self) -> None:
        """Before a stop: a fetch that waits for data gets what there is."""
        for partition in self:
            for waiter in partition.waiters():
                waiter.finish()

    def close(self) -> None:
        """Everything on disk. Blocks: after the loop's work has ended."""
        self.moves.close()
        for directory in self.directories:
            if self.gates[directory.path].is_offline:
                directory.release()
            else:
                try:
                    directory.close(self._clock.now_ms())
                except StorageFailure as failure:
                    logger.error(
                        "%s could not be closed and is recovered at the next start: %s", directory.path, failure
                    )
                    directory.release()


def _directories_by_partition(
    directories: Sequence[DataDirectory], random_name: Callable[[], str]
) -> tuple[dict[tuple[str, int], DataDirectory], dict[tuple[str, int], list[DataDirectory]]]:
    """One for each partition, and those that hold logs of several topics under one name. A crash at the end of a move
    may leave a log in two: then the longer one stays."""
    found: dict[tuple[str, int], DataDirectory] = {}
    contested: dict[tuple[str, int], list[DataDirectory]] = {}
    for directory in directories:
        for key in directory.partitions:
            other = found.setdefault(key, directory)
            if other is directory:
                continue
            ids = {other.topic_id(*key), directory.topic_id(*key)}
            if len(ids) > 1 and None not in ids:
                contested.setdefault(key, [other]).append(directory)
                continue
            ends = [each.end_offset_on_disk(*key) for each in (other, directory)]
            kept, dropped = (other, directory) if ends[0] >= ends[1] else (directory, other)
            logger.warning("%s-%d is in two directories: the log in %s is dropped", *key, dropped.path)
            dropped.delete_log(*key, random_name())
            found[key] = kept
    return found, contested


def _tell_cut(partition: Partition) -> None:
    end = partition.log.log_end_offset
    fields = {"topic": partition.topic, "partition": partition.index, "log_end_offset": end}
    text = "%s-%d had a torn end and was cut: its next record gets offset %d"
    logger.warning(text, partition.topic, partition.index, end, extra=fields)


def log_config(config: TopicConfig, broker: BrokerConfig) -> LogConfig:
    levels = {
        "gzip": config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }
    level = levels.get(config.compression_type)
    return LogConfig(
        segment_bytes=config.segment_bytes,
        segment_ms=config.segment_ms,
        segment_jitter_ms=config.segment_jitter_ms,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        file_delete_delay_ms=config.file_delete_delay_ms,
        flush_messages=config.flush_messages,
        flush_ms=config.flush_ms,
        max_message_bytes=config.max_message_bytes,
        compression_type=config.compression_type,
        compression_level=None if level == -1 else level,
        cleanup_policy=frozenset(config.cleanup_policy),
        message_timestamp_type="LogAppendTime" if config.message_timestamp_type == "LogAppendTime" else "CreateTime",
        message_timestamp_before_max_ms=config.message_timestamp_before_max_ms,
        message_timestamp_after_max_ms=config.message_timestamp_after_max_ms,
        delete_retention_ms=config.delete_retention_ms,
        min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        max_compaction_lag_ms=config.max_compaction_lag_ms,
        preallocate=config.preallocate,
        record_validation="full" if broker.kbroker_record_validation == "full" else "header",
    )


def _make_directories(wanted: list[tuple[DataDirectory, Topic, int]]) -> list[tuple[DataDirectory, Topic, int]]:
    made = []
    for each in wanted:
        directory, topic, index = each
        try:
            directory.make_log_directory(topic.name, index, topic.id)
        except StorageFailure:
            break  # the loop meets it too, and says so
        made.append(each)
    return made


def _chunks(partitions: list[Partition], size: int) -> Iterator[list[Partition]]:
    for start in range(0, len(partitions), size):
        yield partitions[start : start + size]


def _load_all(logs: list[PartitionLog], now_ms: int) -> list[StorageFailure | None]:
    failures: list[StorageFailure | None] = []
    for log in logs:
        try:
            log.recover()
            if log.config.flush_messages == 1:
                log.flush(now_ms)  # what was in memory only when the broker died must not be shown yet
        except StorageFailure as failure:
            failures.append(failure)
        else:
            failures.append(None)
    return failures
