"""Data directories of a broker (log.dirs): which one holds the log of each partition, and which of them can be used.

Places new logs, opens and deletes logs, writes checkpoints. Never decides which partitions this broker has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Final

import trio

from kbroker.clock import Clock
from kbroker.controller.image import TopicImage
from kbroker.errors import StorageFailure
from kbroker.log.directory import DataDirectory
from kbroker.log.files.filesystem import FileSystem
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.names import TopicPartition
from kbroker.replication.partition import Partition
from kbroker.replication.storage_gate import StorageGate

__all__ = ["LogDirs"]

logger = logging.getLogger(__name__)

_MIN_PREPARED: Final = 16
"""Fewer directories are created on the event loop in less time than a thread takes to start."""
_MAX_PREFERENCES: Final = 10_000


class LogDirs:
    def __init__(
        self,
        directories: Sequence[DataDirectory],
        *,
        clock: Clock,
        random_name: Callable[[], str],
        broken: Mapping[str, StorageFailure] = MappingProxyType({}),
        broker_id: int = -1,
    ) -> None:
        """`broken`: paths of data directories that cannot be used, and the failure of each."""
        self.directories = directories
        self.gates = {
            directory.path: StorageGate(directory.path, broker_id=broker_id, reserve=directory.reserve)
            for directory in directories
        }
        for path, failure in broken.items():
            self.gates[path] = StorageGate(path, broker_id=broker_id)
            self.gates[path].close(failure)
        self._clock = clock
        self._random_name = random_name
        self._directory_of, self._contested = _find_logs(directories, random_name)
        self._replica_counts: dict[DataDirectory, int] = {
            directory: len(directory.partitions) for directory in directories
        }
        self._preferred: dict[TopicPartition, DataDirectory] = {}
        self._prepared: dict[tuple[bytes, int], DataDirectory] = {}  # by topic id: partition directories created early
        self._offline: set[TopicPartition] = set()  # partitions whose directory broke, now or before the start
        self._lost: set[TopicPartition] = set()  # offline partitions whose own directory has disappeared
        self._retired: set[str] = set()
        self._is_starting = True
        self._checkpointing = trio.Lock()

    def on_started(self) -> None:
        """Marks the end of the start: the image is complete, so a partition without a log is a new one from now on."""
        self._is_starting = False

    @property
    def filesystem(self) -> FileSystem:
        return self.directories[0].files.filesystem

    def directory_of(self, partition: Partition) -> DataDirectory:
        return self._directory_of[partition.topic, partition.index]

    def gate_of(self, partition: Partition) -> StorageGate:
        return self.gates[self.directory_of(partition).path]

    # Offline partitions

    @property
    def has_offline(self) -> bool:
        return bool(self._offline)

    def is_offline(self, topic: str, index: int) -> bool:
        """Whether this broker's replica of the partition is in a broken data directory."""
        return (topic, index) in self._offline

    def offline_partitions(self) -> Set[TopicPartition]:
        return self._offline

    def check_offline(self, topic: str, index: int) -> bool:
        """Like `is_offline`, for a partition of the image that is not open.

        A log that is not found at the start may be in a broken directory. Such a partition counts as offline: a new,
        empty log in another directory would replace its records.
        """
        key = (topic, index)
        if self._is_starting and key not in self._directory_of and len(self.gates) > len(self.directories):
            self._offline.add(key)
        return key in self._offline

    def lost_end_offset(self, topic: str, index: int) -> int:
        """Returns the last known end offset of a log that has disappeared since the broker stopped; 0 if none has.

        The checkpoints of the data directories know the offset. A log without records is not missed.
        """
        key = (topic, index)
        if not self._is_starting or key in self._directory_of:
            return 0
        return max(directory.checkpoints[key].least_end_offset for directory in self.directories)

    def keep_offline(self, topic: str, index: int) -> None:
        """Marks a partition whose log has disappeared as offline, until `release_lost`."""
        self._lost.add((topic, index))
        self._offline.add((topic, index))

    def release_lost(self, topic: str, index: int) -> bool:
        """Lets a log that has disappeared be created again. Returns whether `keep_offline` had prevented that."""
        if (topic, index) not in self._lost:
            return False
        self._lost.discard((topic, index))
        self._offline.discard((topic, index))
        return True

    def mark_offline(self, partition: Partition) -> None:
        self._offline.add((partition.topic, partition.index))

    def broken_paths(self) -> set[str]:
        """Returns the paths of all broken directories if another one broke since the last call, else an empty set.

        Also empty while every directory is broken: then no partition can be served, and Kafka would stop.
        """
        broken = {path for path, gate in self.gates.items() if gate.is_offline}
        if broken == self._retired or len(broken) == len(self.gates):
            return set()
        self._retired = broken
        return broken

    @property
    def have_all_failed(self) -> bool:
        return all(gate.is_offline for gate in self.gates.values())

    # Full directories

    def check_space(self) -> None:
        """Creates the reserve of each directory at the start. Closes the gate of a directory without space for it."""
        for directory in self.directories:
            gate = self.gates[directory.path]
            try:
                if not gate.restore_reserve():
                    gate.close(StorageFailure(f"{directory.path}: no space left for records", is_full=True))
            except StorageFailure as failure:
                gate.close(failure)

    async def reopen_full(self) -> None:
        """Opens the gates of full directories that have space again. Called about once a second."""
        for gate in self.gates.values():
            if not gate.is_full or gate.is_offline:
                continue
            try:
                has_space = await trio.to_thread.run_sync(gate.restore_reserve)
            except StorageFailure as failure:
                gate.close(failure)
            else:
                if has_space:
                    gate.open()

    # Placing logs

    def prefer(self, topic: str, index: int, directory: DataDirectory) -> None:
        """Sets the directory of a partition that does not exist yet (AlterReplicaLogDirs)."""
        if len(self._preferred) >= _MAX_PREFERENCES:
            self._preferred.pop(next(iter(self._preferred)))
        self._preferred[topic, index] = directory

    def _directory_for_new(self, topic: str, index: int) -> DataDirectory:
        """Returns the preferred directory if it is online, else the online directory with the fewest replicas.

        Full directories come last.
        """
        online = [directory for directory in self.directories if not self.gates[directory.path].is_offline]
        preferred = self._preferred.pop((topic, index), None)
        if preferred in online:
            return preferred
        with_space = [directory for directory in online if not self.gates[directory.path].is_full]
        return min(with_space or online or self.directories, key=self._replica_counts.__getitem__)

    def count_replica(self, directory: DataDirectory, difference: int) -> None:
        """Counts a replica in the directory, or one less: moves count in their target from the beginning."""
        self._replica_counts[directory] += difference

    async def prepare(self, partitions: Sequence[tuple[TopicImage, int]]) -> None:
        """Creates the directories of new partitions in a thread: ten thousand take the disk a second or two.

        Partitions whose name has a log already are left to `open_log`, which handles logs of deleted topics; so are
        directories that could not be created.
        """
        self._prepared.clear()
        new = [
            (topic, index)
            for topic, index in partitions
            if (topic.name, index) not in self._directory_of
            and (topic.name, index) not in self._offline
            and not self.lost_end_offset(topic.name, index)
        ]
        if len(new) >= _MIN_PREPARED:
            created = await trio.to_thread.run_sync(_create_directories, self._place(new))
            self._prepared = {(topic.id, index): directory for directory, topic, index in created}

    def _place(self, new: list[tuple[TopicImage, int]]) -> list[tuple[DataDirectory, TopicImage, int]]:
        # The counts are restored: `open_log` counts each replica when its log is really created.
        counts = dict(self._replica_counts)
        try:
            placed = []
            for topic, index in new:
                directory = self._directory_for_new(topic.name, index)
                self._replica_counts[directory] += 1
                placed.append((directory, topic, index))
            return placed
        finally:
            self._replica_counts = counts

    # Opening and deleting logs

    def open_log(self, topic: TopicImage, index: int, config: LogConfig) -> tuple[PartitionLog, StorageGate]:
        """Opens the log of a partition, or creates it. Raises StorageFailure if its directory is offline or full."""
        key = (topic.name, index)
        if key in self._contested:
            self._delete_contested(topic, index)
        directory = self._directory_of.get(key)
        if directory is not None and self._is_of_deleted_topic(directory, topic, index):
            directory.delete_log(topic.name, index, unique=self._random_name())
            self._replica_counts[directory] -= 1
            directory = None
        if directory is not None:
            return directory.open_log(topic.name, index, config), self.gates[directory.path]
        directory = self._prepared.pop((topic.id, index), None)
        if directory is not None:
            log = directory.create_prepared_log(topic.name, index, config)
        else:
            directory = self._directory_for_new(topic.name, index)
            gate = self.gates[directory.path]
            log = gate.with_reserve(directory.create_log, topic.name, index, topic.id, config)
        self._replica_counts[directory] += 1
        self._directory_of[key] = directory
        return log, self.gates[directory.path]

    def _is_of_deleted_topic(self, directory: DataDirectory, topic: TopicImage, index: int) -> bool:
        """Whether the log belongs to a deleted topic of the same name.

        Checked after a clean shutdown too: the topic may have been deleted and created again while the broker was down.
        """
        return directory.topic_id(topic.name, index) not in (None, topic.id)

    def _delete_contested(self, topic: TopicImage, index: int) -> None:
        """Deletes logs of this name that belong to other topic ids.

        Several directories hold one if a broken directory is back after its topic was deleted and created again.
        """
        key = (topic.name, index)
        del self._directory_of[key]
        for directory in self._contested.pop(key):
            if directory.topic_id(*key) == topic.id:
                self._directory_of[key] = directory
            else:
                directory.delete_log(*key, unique=self._random_name())
                self._replica_counts[directory] -= 1

    def delete_log(self, topic: str, index: int) -> None:
        """Deletes the log of a partition, if this broker has one. A failure is logged."""
        directory = self._directory_of.pop((topic, index), None)
        if directory is None:
            return
        self._replica_counts[directory] -= 1
        try:
            directory.delete_log(topic, index, unique=self._random_name())
        except StorageFailure as failure:
            logger.error("Could not delete the log of %s-%d: %s", topic, index, failure)

    @property
    def found(self) -> Mapping[TopicPartition, DataDirectory]:
        """Returns the directory of each log, open or not."""
        return self._directory_of

    def rename_stray(self, topic: str, index: int) -> None:
        """Renames the directory of a log that is not open to Kafka's name for strays. A failure is logged."""
        directory = self._directory_of[topic, index]
        try:
            path = directory.rename_stray(topic, index, unique=self._random_name())
        except StorageFailure as failure:
            logger.error("Could not rename the stray log of %s-%d: %s", topic, index, failure)
            return
        del self._directory_of[topic, index]
        self._replica_counts[directory] -= 1
        logger.warning("Found a stray log of %s-%d, renamed to %s. Delete it if it is not needed.", topic, index, path)

    def on_topic_deleted(self, topic: TopicImage) -> None:
        for index in range(len(topic.partitions)):
            self._offline.discard((topic.name, index))
            self._lost.discard((topic.name, index))
            self.delete_log(topic.name, index)

    def on_moved(self, partition: Partition, *, source: DataDirectory, target: DataDirectory) -> StorageGate:
        """Notes that the log is in `target` now. Its replica was counted there when the move began."""
        self._directory_of[partition.topic, partition.index] = target
        self._replica_counts[source] -= 1
        return self.gates[target.path]

    # Checkpoints

    async def checkpoint(self) -> None:
        """Writes recovery points, high watermarks and log start offsets. A failure affects its directory only."""
        async with self._checkpointing:  # checkpoint files have fixed names: one writer at a time
            for directory in self.directories:
                gate = self.gates[directory.path]
                if gate.is_offline:
                    continue
                checkpoints = directory.checkpoints
                collected = checkpoints.collect(directory.logs)
                try:
                    await trio.to_thread.run_sync(gate.with_reserve, checkpoints.write, collected)
                except StorageFailure as failure:
                    gate.close(failure)
                    if failure.is_full:
                        logger.error("Could not write the checkpoints of %s; retrying later: %s", gate.path, failure)

    async def checkpoint_cleaner(self, directory: DataDirectory) -> None:
        """Writes up to which offsets the logs of a directory are compacted. Raises StorageFailure if the disk fails."""
        async with self._checkpointing:
            if checkpoint := directory.checkpoints.collect_cleaner_offsets(directory.logs):
                await trio.to_thread.run_sync(directory.checkpoints.write, checkpoint)

    def close(self) -> None:
        """Flushes and closes all logs. Blocks: call it after the tasks of the event loop have ended."""
        for directory in self.directories:
            gate = self.gates[directory.path]
            if gate.is_offline:
                directory.release()
                continue
            try:
                gate.with_reserve(directory.close, self._clock.now_ms())
            except StorageFailure as failure:
                logger.error(
                    "Could not close %s; its logs are recovered at the next start: %s", directory.path, failure
                )
                directory.release()


def _find_logs(
    directories: Sequence[DataDirectory], random_name: Callable[[], str]
) -> tuple[dict[TopicPartition, DataDirectory], dict[TopicPartition, list[DataDirectory]]]:
    """Returns the directory of each partition, and the directories that hold logs of several topics under one name.

    A crash at the end of a move may leave the same log in two directories: the shorter one is deleted.
    """
    found: dict[TopicPartition, DataDirectory] = {}
    contested: dict[TopicPartition, list[DataDirectory]] = {}
    for directory in directories:
        for key in directory.partitions:
            other = found.setdefault(key, directory)
            if other is directory:
                continue
            ids = {other.topic_id(*key), directory.topic_id(*key)}
            if len(ids) > 1 and None not in ids:
                contested.setdefault(key, [other]).append(directory)
                continue
            is_shorter = directory.end_offset_on_disk(*key) <= other.end_offset_on_disk(*key)
            kept, dropped = (other, directory) if is_shorter else (directory, other)
            logger.warning("The log of %s-%d is in two directories; deleting the one in %s", *key, dropped.path)
            dropped.delete_log(*key, unique=random_name())
            found[key] = kept
    return found, contested


def _create_directories(
    placed: list[tuple[DataDirectory, TopicImage, int]],
) -> list[tuple[DataDirectory, TopicImage, int]]:
    created = []
    for directory, topic, index in placed:
        try:
            directory.make_log_directory(topic.name, index, topic.id)
        except StorageFailure:
            break  # opening the log on the event loop fails the same way, and logs it
        created.append((directory, topic, index))
    return created
