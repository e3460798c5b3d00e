"""Every partition that this broker holds, found by name and number; follows the controller's image.

Opens the data directories, gives each partition its log, recovers after a crash. Never decides which partitions there
are: the image does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import trio

from kbroker.clock import Clock
from kbroker.config import BrokerConfig, TopicConfig, topic_config
from kbroker.controller.changes import Change, PartitionsChanged, TopicAdded, TopicConfigsChanged, TopicRemoved
from kbroker.controller.image import Image, Topic
from kbroker.errors import StorageFailure
from kbroker.log.directory import DataDirectory
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.replication.flusher import Flusher
from kbroker.replication.partition import Partition
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
    ) -> None:
        """`broken`: data directories that cannot be used, and why."""
        self.directories = directories
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
        self._topics: dict[str, list[Partition | None]] = {}
        self._names_by_id: dict[bytes, str] = {}
        self._directory_of, self._contested = _directories_by_partition(directories, random_name)
        self._held: dict[DataDirectory, int] = {directory: len(directory.partitions) for directory in directories}
        self.moves = ReplicaMoves(self, random_name)
        self._incomplete: dict[str, Topic] = {}  # some of their partitions could not be opened
        self._prepared: dict[tuple[bytes, int], DataDirectory] = {}  # by topic id: directories that have been made
        self._is_starting = True
        self._checkpointing = trio.Lock()

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._topics.values():
            for partition in partitions:
                if partition is not None:
                    yield partition

    def get(self, topic: str, index: int) -> Partition | None:
        """Hot path."""
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
        for change in changes:
            match change:
                case TopicAdded(topic):
                    self._add(topic)
                case TopicRemoved(topic):
                    self._remove(topic)
                case PartitionsChanged(name, _):
                    self._add(image.topics[name])
                case TopicConfigsChanged(name, configs):
                    self._reconfigure(name, topic_config(self._config, configs))

    def _add(self, topic: Topic) -> None:
        config = topic_config(self._config, topic.configs)
        for_log = log_config(config, self._config)
        held = self._topics.setdefault(topic.name, [])
        self._names_by_id[topic.id] = topic.name
        self._incomplete.pop(topic.name, None)
        for index, state in enumerate(topic.partitions):
            known = held[index] if index < len(held) else None
            if known is not None:
                known.leader_epoch = state.leader_epoch
                continue
            partition = None
            if self._broker_id in state.replicas and not self._is_out_of_reach(topic.name, index):
                try:
                    partition = self._open(topic, index, state.leader_epoch, config, for_log)
                except StorageFailure as failure:
                    logger.error("%s-%d cannot be opened: %s", topic.name, index, failure)
                    self._incomplete[topic.name] = topic
            held[index : index + 1] = [partition]

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
                self.moves.cancel(key)
                partition.leave()

    def open_missing(self) -> None:
        """About once a second: what a full disk did not let us open may go now."""
        for topic in list(self._incomplete.values()):
            self._add(topic)

    def _open(self, topic: Topic, index: int, leader_epoch: int, config: TopicConfig, for_log: LogConfig) -> Partition:
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
            leader_epoch=leader_epoch,
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
        for partition in self._topics.pop(topic.name, []):
            if partition is not None:
                partition.leave()
        for index in range(len(topic.partitions)):
            self._offline.discard((topic.name, index))
            self.moves.cancel((topic.name, index))
            directory = self._directory_of.pop((topic.name, index), None)
            if directory is not None:
                self._held[directory] -= 1
                try:
                    directory.delete_log(topic.name, index, self._random_name())
                except StorageFailure as failure:
                    logger.error("%s-%d cannot be deleted: %s", topic.name, index, failure)

    def _reconfigure(self, name: str, config: TopicConfig) -> None:
        for_log = log_config(config, self._config)
        for partition in self._topics.get(name, []):
            if partition is not None:
                partition.log.update_config(for_log)
                partition.update_config(config)

    # Starting and stopping

    async def recover(self) -> list[tuple[str, int]]:
        """After a crash: scan what may be torn, in one thread. Returns the partitions that need a new leader epoch.

        Those are all that were scanned: a log that lost whole batches looks like one that lost nothing. Not in several
        threads: all logs share one cache of open files, which knows none.
        """
        self._is_starting = False
        unclean = [each for each in self if each.log.needs_recovery]
        if unclean:
            logger.warning("recovering %d partitions after an unclean stop", len(unclean))
            began = self._clock.monotonic()
            for chunk in _chunks(unclean, 64):
                await self._recover_chunk(chunk)
            logger.info("recovered %d partitions in %.2f s", len(unclean), self._clock.monotonic() - began)
        return [(each.topic, each.index) for each in unclean if each.log.is_loaded]

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
            for waiter in list(partition.fetch_waiters):
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
