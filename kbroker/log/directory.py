"""Data directory of a broker: its owner, its partitions, and whether it was shut down cleanly. Files as in Kafka:

    .lock  meta.properties  .kafka_cleanshutdown  kbroker.format
    recovery-point-offset-checkpoint  replication-offset-checkpoint  log-start-offset-checkpoint
    cleaner-offset-checkpoint  kbroker.reserve  kbroker.unrecovered
    <topic>-<partition>/  <topic>-<partition>.<unique>-delete/  <topic>-<partition>.<unique>-future/
    <topic>-<partition>.<unique>-stray/

Never decides which partitions should exist; opens no log before its first use.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from kbroker.errors import StorageFailure, UserError
from kbroker.log.directory_checkpoints import DirectoryCheckpoints
from kbroker.log.files.checkpoint import CheckpointedOffsets, decode_lines, encode_lines
from kbroker.log.files.directory_metadata import (
    PARTITION_METADATA,
    check_format,
    decode_partition_metadata,
    deleted_name,
    encode_partition_metadata,
    future_name,
    is_deleted_name,
    partition_name,
    read_meta_properties,
    split_future_name,
    split_partition_name,
    stray_name,
    write_meta_properties,
)
from kbroker.log.files.file_cache import FileCache
from kbroker.log.files.filesystem import DirectoryLock, FileSystem
from kbroker.log.files.space_reserve import SpaceReserve
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.log.recovery import load_log
from kbroker.log.roll_rules import no_jitter
from kbroker.names import TopicPartition

__all__ = ["DataDirectory", "normalized"]

_LOCK = ".lock"
_CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
_CLEAN_SHUTDOWN_CONTENT = b'{"version":0,"brokerEpoch":-1}'
_UNRECOVERED = "kbroker.unrecovered"
_FEW_LOGS = 32  # to fsync more logs than this, it is faster to write out the whole file system first


def normalized(path: str) -> str:
    """Returns a path in the form of `DataDirectory.path`."""
    return path.rstrip("/") or "/"


class DataDirectory:
    """Holds the lock from `open` to `close`."""

    def __init__(
        self,
        files: FileCache,
        path: str,
        lock: DirectoryLock,
        *,
        broker_id: int,
        reserve_bytes: int,
        random_below: Callable[[int], int],
    ) -> None:
        self.files = files
        self.path = path
        self._broker_id = broker_id
        self._lock = lock
        self._random_below = random_below
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.unsound: set[TopicPartition] = set()
        """Partitions that were used and need recovery first."""
        self.interrupted_moves: list[TopicPartition] = []
        """Partitions whose move to this directory was interrupted; the incomplete copies are deleted."""
        self.was_clean = files.filesystem.exists(f"{path}/{_CLEAN_SHUTDOWN}")
        self.checkpoints = DirectoryCheckpoints(files.filesystem, path)
        self.reserve = SpaceReserve(files.filesystem, path, reserve_bytes)
        self._found: set[TopicPartition] = set()
        self._shortened: set[TopicPartition] = set()
        self._unrecovered = _read_partitions(files.filesystem, f"{path}/{_UNRECOVERED}")
        """Partitions of an earlier crash that no start has recovered, because no topic had them."""
        self._deleted: list[tuple[str, PartitionLog | None]] = []

    @classmethod
    def open(
        cls,
        files: FileCache,
        path: str,
        *,
        broker_id: int,
        cluster_id: str | None = None,
        reserve_bytes: int = 0,
        random_below: Callable[[int], int] = no_jitter,
    ) -> DataDirectory:
        """Locks the directory and checks that it belongs to this broker and cluster (`cluster_id` None: any cluster).

        Raises UserError if it is locked, belongs to another broker, or has an unknown format, and StorageFailure if it
        cannot be read or written.
        """
        filesystem = files.filesystem
        path = normalized(path)
        filesystem.make_directory(path)
        lock = filesystem.lock(f"{path}/{_LOCK}")
        if lock is None:
            raise UserError(
                f"Failed to acquire lock on file .lock in {path}. A Kafka instance in another process or thread is "
                "using this directory."
            )
        try:
            check_format(filesystem, path)
            write_meta_properties(filesystem, path, broker_id=broker_id, cluster_id=cluster_id)
            directory = cls(
                files, path, lock, broker_id=broker_id, reserve_bytes=reserve_bytes, random_below=random_below
            )
            # Fsync the removal, also if the marker is missing already: a marker that a power loss restores would hide
            # lost records, and their offsets would be assigned again in the same leader epoch.
            filesystem.remove(f"{path}/{_CLEAN_SHUTDOWN}")
            filesystem.sync_directory(path)
            directory._find_partitions()
        except FileNotFoundError as error:
            lock.release()
            raise StorageFailure(f"{path} does not exist any more") from error
        except BaseException:
            lock.release()
            raise
        return directory

    def _find_partitions(self) -> None:
        for name in self.files.filesystem.list_directories(self.path):
            if is_deleted_name(name):
                self._deleted.append((f"{self.path}/{name}", None))
            elif (moving := split_future_name(name)) is not None:
                self.interrupted_moves.append(moving)
                self._deleted.append((f"{self.path}/{name}", None))
            elif (partition := split_partition_name(name)) is not None:
                self._found.add(partition)
        if not self._found:
            self.was_clean = True  # a crash has damaged nothing

    @property
    def cluster_id(self) -> str | None:
        return read_meta_properties(self.files.filesystem, self.path).get("cluster.id")

    def set_cluster_id(self, cluster_id: str) -> None:
        write_meta_properties(self.files.filesystem, self.path, broker_id=self._broker_id, cluster_id=cluster_id)

    # Partitions

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Returns the partitions that have a directory here, opened or not."""
        return frozenset(self._found)

    def __iter__(self) -> Iterator[PartitionLog]:
        return iter(self.logs.values())

    def path_of(self, topic: str, partition: int) -> str:
        return f"{self.path}/{partition_name(topic, partition)}"

    def topic_id(self, topic: str, partition: int) -> bytes | None:
        """Returns the topic id in partition.metadata; None if the file does not exist."""
        try:
            content = self.files.filesystem.read(f"{self.path_of(topic, partition)}/{PARTITION_METADATA}")
        except FileNotFoundError:
            return None
        return decode_partition_metadata(content)

    def open_log(self, topic: str, partition: int, config: LogConfig) -> PartitionLog:
        """Returns the log of a partition that has a directory here. Cheap: files are read at the first use."""
        key = (topic, partition)
        log = self.logs.get(key)
        if log is None:
            assert key in self._found, f"{topic}-{partition} has no directory"
            is_clean = self.was_clean and key not in self._shortened and key not in self._unrecovered
            log = self._new_log(key, config, is_clean=is_clean)
        return log

    def create_log(self, topic: str, partition: int, topic_id: bytes | None, config: LogConfig) -> PartitionLog:
        """Returns the log of a partition; creates its directory if it does not exist."""
        if (topic, partition) in self._found:
            return self.open_log(topic, partition, config)
        self.make_log_directory(topic, partition, topic_id)
        return self.create_prepared_log(topic, partition, config)

    def make_log_directory(self, topic: str, partition: int, topic_id: bytes | None) -> None:
        """Creates the directory of a new partition. Changes nothing in memory, so a thread may call it."""
        self._make_directory(self.path_of(topic, partition), topic_id)

    def _make_directory(self, path: str, topic_id: bytes | None) -> None:
        filesystem = self.files.filesystem
        filesystem.make_directory(path)
        if topic_id is not None:
            filesystem.replace(f"{path}/{PARTITION_METADATA}", encode_partition_metadata(topic_id), sync=False)

    def create_prepared_log(self, topic: str, partition: int, config: LogConfig) -> PartitionLog:
        """Returns the log of a new partition whose directory `make_log_directory` has created."""
        key = (topic, partition)
        self.checkpoints.forget(key)
        self._found.add(key)
        return self._new_log(key, config, is_clean=True)

    def _new_log(self, key: TopicPartition, config: LogConfig, *, is_clean: bool) -> PartitionLog:
        log = PartitionLog(
            self.files,
            self.path_of(*key),
            config,
            self.checkpoints[key],
            is_clean=is_clean,
            random_below=self._random_below,
            on_unsound=partial(self.unsound.add, key),
        )
        self.logs[key] = log
        return log

    def end_offset_on_disk(self, topic: str, partition: int) -> int:
        """Returns the log end offset that a start would find. For a partition that is in two directories."""
        key = (topic, partition)
        files = FileCache(self.files.filesystem)
        path = self.path_of(topic, partition)
        log = load_log(files, path, LogConfig(), self.checkpoints[key], is_clean=self.was_clean)
        log.close_files()
        if log.was_shortened:
            self._shortened.add(key)
        return log.log_end_offset

    def sync(self) -> None:
        """Fsyncs the names of the partitions. Blocks."""
        self.files.filesystem.sync_directory(self.path)

    # Partitions that are moved here from another data directory

    def create_future(self, topic: str, partition: int, topic_id: bytes | None, *, unique: str) -> str | None:
        """Creates the directory for a copy and returns its path; None if its name would be too long."""
        name = future_name(topic, partition, unique=unique)
        if name is None:
            return None
        path = f"{self.path}/{name}"
        self._make_directory(path, topic_id)
        return path

    def discard_future(self, topic: str, partition: int, *, path: str, unique: str) -> None:
        self._rename_deleted(topic, partition, path, unique, None)

    def adopt_future(
        self, topic: str, partition: int, path: str, config: LogConfig, offsets: CheckpointedOffsets
    ) -> PartitionLog:
        """Makes the copy in `path` the log of the partition, durably: after a crash it is found. Blocks on fsync."""
        key = (topic, partition)
        filesystem = self.files.filesystem
        filesystem.rename(path, self.path_of(topic, partition))
        try:
            filesystem.sync_directory(self.path)
            self.checkpoints[key] = offsets
            log = self._new_log(key, config, is_clean=True)
            log.open()
        except BaseException:
            self.logs.pop(key, None)
            self.checkpoints.forget(key)
            filesystem.rename(self.path_of(topic, partition), path)
            raise
        self._found.add(key)
        log.recovery_point = offsets.recovery_point
        return log

    # Deleted partitions

    def delete_log(self, topic: str, partition: int, *, unique: str) -> None:
        """Renames the directory. `pop_purgeable` returns it when no response reads from it any more."""
        key = (topic, partition)
        log = self.logs.pop(key, None)
        self._found.discard(key)
        self._rename_deleted(topic, partition, self.path_of(topic, partition), unique, log)
        self.checkpoints.forget(key)

    def rename_stray(self, topic: str, partition: int, *, unique: str) -> str:
        """Renames the directory of a log that is not open, so that no start finds it. Returns the new path."""
        key = (topic, partition)
        assert key not in self.logs
        path = f"{self.path}/{stray_name(topic, partition, unique=unique)}"
        self.files.filesystem.rename(self.path_of(topic, partition), path)
        self._found.discard(key)
        self.checkpoints.forget(key)
        return path

    def _rename_deleted(self, topic: str, partition: int, path: str, unique: str, log: PartitionLog | None) -> None:
        deleted = f"{self.path}/{deleted_name(topic, partition, unique=unique)}"
        self.files.filesystem.rename(path, deleted)
        self._deleted.append((deleted, log))

    @property
    def has_deleted(self) -> bool:
        return bool(self._deleted)

    def purge_deleted(self) -> int:
        """Removes the deleted partitions that are not read any more; returns how many are left. Blocks."""
        self.remove_directories(self.pop_purgeable())
        return len(self._deleted)

    def pop_purgeable(self) -> list[str]:
        """Returns the directories of deleted partitions that are not read any more, for `remove_directories`.

        Their files are closed here, on the loop: the cache of open files knows no threads.
        """
        purgeable: list[str] = []
        left: list[tuple[str, PartitionLog | None]] = []
        for path, log in self._deleted:
            if log is not None and log.has_pins():
                left.append((path, log))
                continue
            if log is not None:
                log.close_files()
            purgeable.append(path)
        self._deleted = left
        return purgeable

    def remove_directories(self, paths: Iterable[str]) -> None:
        """Removes directories with their files, in a thread: this may block for long. The next start finds the rest."""
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self.files.filesystem.remove_directory(path)

    # Closing

    def close(self, now_ms: int) -> None:
        """Shuts down cleanly: flushes everything, then writes the clean shutdown marker, then releases the lock."""
        filesystem, checkpoints = self.files.filesystem, self.checkpoints
        opened = [(handle, log) for handle in self.logs.values() if (log := handle.opened) is not None]
        unflushed = [log for _, log in opened if log.recovery_point < log.log_end_offset]
        if len(unflushed) > _FEW_LOGS:
            filesystem.sync_all()  # reports no failure: the fsyncs do, and have little left to write
        for log in unflushed:
            log.flush(now_ms)
        checkpoints.write([*checkpoints.collect_offsets(self.logs), *checkpoints.collect_cleaner_offsets(self.logs)])
        for handle, _ in opened:
            handle.close()
        checkpoints.write([checkpoints.collect_recovery_points(self.logs)])
        if not any(handle.needs_recovery for handle in self.logs.values()):
            self._write_unrecovered()
            filesystem.replace(f"{self.path}/{_CLEAN_SHUTDOWN}", _CLEAN_SHUTDOWN_CONTENT)
        self.release()

    def _write_unrecovered(self) -> None:
        """Lists logs that a crash may have damaged and that belong to no topic, so that the rest counts as clean."""
        unknown = self._found.difference(self.logs)
        left = unknown & self._unrecovered if self.was_clean else unknown
        path = f"{self.path}/{_UNRECOVERED}"
        if left:
            self.files.filesystem.replace(path, encode_lines(sorted(left)))
        else:
            self.files.filesystem.remove(path)

    def release(self) -> None:
        """Releases only the lock, as after a crash or a disk failure."""
        self._lock.release()


def _read_partitions(filesystem: FileSystem, path: str) -> set[TopicPartition]:
    try:
        return {(topic, int(partition)) for topic, partition in decode_lines(filesystem.read(path))}
    except (FileNotFoundError, ValueError):
        return set()
