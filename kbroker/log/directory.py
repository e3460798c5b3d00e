"""One data directory: whose it is, which partitions lie in it, and how it was left. Kafka's files, name for name.

    .lock  meta.properties  .kafka_cleanshutdown  kbroker.format
    recovery-point-offset-checkpoint  replication-offset-checkpoint  log-start-offset-checkpoint
    cleaner-offset-checkpoint
    <topic>-<partition>/  <topic>-<partition>.<unique>-delete/  <topic>-<partition>.<unique>-future/

Never decides which partitions there are to be; opens no log before somebody uses it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from kbroker.errors import StorageFailure, UserError
from kbroker.log.checkpoint import (
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TopicPartition,
    read_offsets,
    write_offsets,
)
from kbroker.log.directory_metadata import (
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
    write_meta_properties,
)
from kbroker.log.file_cache import FileCache
from kbroker.log.filesystem import DirectoryLock
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.log.recovery import load_log
from kbroker.log.rolling import no_jitter

__all__ = ["DataDirectory", "normalized"]

_LOCK = ".lock"
_CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
_CLEAN_SHUTDOWN_CONTENT = b'{"version":0,"brokerEpoch":-1}'
_FEW_LOGS = 32  # up to here a clean stop fsyncs file by file; above, all of the file system at once


def normalized(path: str) -> str:
    """As `DataDirectory.path` has it."""
    return path.rstrip("/") or "/"


class DataDirectory:
    """Holds the lock from `open` to `close`. UserError where a person can help: in use, another's, too new."""

    def __init__(
        self,
        files: FileCache,
        path: str,
        lock: DirectoryLock,
        *,
        broker_id: int,
        random_below: Callable[[int], int],
    ) -> None:
        self.files = files
        self.path = path
        self._broker_id = broker_id
        self._lock = lock
        self._random_below = random_below
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.unsound: set[TopicPartition] = set()
        """Partitions that somebody wanted to use, and that have to be recovered first."""
        self._shortened: set[TopicPartition] = set()
        self._deleted: list[tuple[str, PartitionLog | None]] = []
        filesystem = files.filesystem
        self.was_clean = filesystem.exists(f"{path}/{_CLEAN_SHUTDOWN}")
        self._recovery_points = read_offsets(filesystem, f"{path}/{RECOVERY_POINT_CHECKPOINT}")
        self._high_watermarks = read_offsets(filesystem, f"{path}/{REPLICATION_CHECKPOINT}")
        self._log_starts = read_offsets(filesystem, f"{path}/{LOG_START_CHECKPOINT}")
        self._cleaner_offsets = read_offsets(filesystem, f"{path}/{CLEANER_CHECKPOINT}")
        self._written_cleaner_offsets = dict(self._cleaner_offsets)

    @classmethod
    def open(
        cls,
        files: FileCache,
        path: str,
        *,
        broker_id: int,
        cluster_id: str | None = None,
        random_below: Callable[[int], int] = no_jitter,
    ) -> DataDirectory:
        """Locks it, and checks that it is this broker's. `cluster_id` None: whatever it was (`cluster_id`).

        StorageFailure: it cannot be read or written.
        """
        filesystem = files.filesystem
        path = normalized(path)
        filesystem.make_directory(path)
        lock = filesystem.lock(f"{path}/{_LOCK}")
        if lock is None:
            raise UserError(f"the data directory {path} is in use by another broker: stop it, or name another")
        try:
            check_format(filesystem, path)
            write_meta_properties(filesystem, path, broker_id=broker_id, cluster_id=cluster_id)
            directory = cls(files, path, lock, broker_id=broker_id, random_below=random_below)
            # From here on a crash is a crash, and of the power too: were the file back after one, what that took would
            # look as if it had never been, and its offsets would be given out again under the same epoch. It may be
            # gone but for the disk, if a start died right here.
            filesystem.remove(f"{path}/{_CLEAN_SHUTDOWN}")
            filesystem.sync_directory(path)
            directory._find_partitions()
        except FileNotFoundError as error:
            lock.release()
            raise StorageFailure(f"{path} has gone") from error
        except BaseException:
            lock.release()
            raise
        return directory

    @property
    def _all_offsets(self) -> tuple[dict[TopicPartition, int], ...]:
        return self._recovery_points, self._high_watermarks, self._log_starts, self._cleaner_offsets

    def _find_partitions(self) -> None:
        self._found: set[TopicPartition] = set()
        self.interrupted_moves: list[TopicPartition] = []
        """Partitions that were on their way here; what has arrived of them is dropped."""
        for name in self.files.filesystem.list_directories(self.path):
            if is_deleted_name(name):
                self._deleted.append((f"{self.path}/{name}", None))
            elif (moving := split_future_name(name)) is not None:
                self.interrupted_moves.append(moving)
                self._deleted.append((f"{self.path}/{name}", None))
            elif (partition := split_partition_name(name)) is not None:
                self._found.add(partition)
        if not self._found:
            self.was_clean = True  # nothing that a crash could have torn

    @property
    def cluster_id(self) -> str | None:
        return read_meta_properties(self.files.filesystem, self.path).get("cluster.id")

    def set_cluster_id(self, cluster_id: str) -> None:
        write_meta_properties(self.files.filesystem, self.path, broker_id=self._broker_id, cluster_id=cluster_id)

    @property
    def has_deleted(self) -> bool:
        return bool(self._deleted)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Those that have a directory here, whether opened or not."""
        return frozenset(self._found)

    def __iter__(self) -> Iterator[PartitionLog]:
        return iter(self.logs.values())

    def path_of(self, topic: str, partition: int) -> str:
        return f"{self.path}/{partition_name(topic, partition)}"

    def open_log(self, topic: str, partition: int, config: LogConfig) -> PartitionLog:
        """Of a partition that is here. Cheap: the files are read at the first use."""
        key = (topic, partition)
        log = self.logs.get(key)
        if log is None:
            assert key in self._found, f"{topic}-{partition} has no directory"
            log = self._new_log(key, config, is_clean=self.was_clean and key not in self._shortened)
        return log

    def create_log(self, topic: str, partition: int, topic_id: bytes | None, config: LogConfig) -> PartitionLog:
        """A new partition, or the one that is here already."""
        key = (topic, partition)
        if key in self._found:
            return self.open_log(topic, partition, config)
        self.make_log_directory(topic, partition, topic_id)
        return self.create_prepared_log(topic, partition, config)

    def make_log_directory(self, topic: str, partition: int, topic_id: bytes | None) -> None:
        """What a new partition has on disk. Touches nothing else, so a thread may do it."""
        path = self.path_of(topic, partition)
        filesystem = self.files.filesystem
        filesystem.make_directory(path)
        if topic_id is not None:
            filesystem.replace(f"{path}/{PARTITION_METADATA}", encode_partition_metadata(topic_id), sync=False)

    def create_prepared_log(self, topic: str, partition: int, config: LogConfig) -> PartitionLog:
        """A new partition whose directory has been made."""
        key = (topic, partition)
        for offsets in self._all_offsets:
            offsets.pop(key, None)
        self._found.add(key)
        return self._new_log(key, config, is_clean=True)

    def _new_log(self, key: TopicPartition, config: LogConfig, *, is_clean: bool) -> PartitionLog:
        log = PartitionLog(
            self.files,
            self.path_of(*key),
            config,
            log_start_offset=self._log_starts.get(key, 0),
            recovery_point=self._recovery_points.get(key, 0),
            high_watermark=self._high_watermarks.get(key, 0),
            cleaner_offset=self._cleaner_offsets.get(key),
            is_clean=is_clean,
            random_below=self._random_below,
            on_unsound=partial(self.unsound.add, key),
        )
        self.logs[key] = log
        return log

    def topic_id(self, topic: str, partition: int) -> bytes | None:
        """What partition.metadata says; None where there is none."""
        try:
            content = self.files.filesystem.read(f"{self.path_of(topic, partition)}/{PARTITION_METADATA}")
        except FileNotFoundError:
            return None
        return decode_partition_metadata(content)

    def delete_log(self, topic: str, partition: int, unique: str) -> None:
        """Renames the directory at once; `purge_deleted` removes it when no response reads from it any more."""
        key = (topic, partition)
        log = self.logs.pop(key, None)
        self._found.discard(key)
        doomed = f"{self.path}/{deleted_name(topic, partition, unique)}"
        self.files.filesystem.rename(self.path_of(topic, partition), doomed)
        for offsets in self._all_offsets:
            offsets.pop(key, None)
        self._deleted.append((doomed, log))

    # Partitions that come from another data directory

    def create_future(self, topic: str, partition: int, topic_id: bytes | None, unique: str) -> str | None:
        """The directory for a copy; None if its name would be too long."""
        name = future_name(topic, partition, unique)
        if name is None:
            return None
        path = f"{self.path}/{name}"
        self.files.filesystem.make_directory(path)
        if topic_id is not None:
            content = encode_partition_metadata(topic_id)
            self.files.filesystem.replace(f"{path}/{PARTITION_METADATA}", content, sync=False)
        return path

    def discard_future(self, topic: str, partition: int, path: str, unique: str) -> None:
        doomed = f"{self.path}/{deleted_name(topic, partition, unique)}"
        self.files.filesystem.rename(path, doomed)
        self._deleted.append((doomed, None))

    def adopt_future(
        self,
        topic: str,
        partition: int,
        path: str,
        config: LogConfig,
        *,
        log_start_offset: int,
        recovery_point: int,
        high_watermark: int,
    ) -> PartitionLog:
        """The copy becomes the log, on the disk too: from here on a crash finds it. Blocks on an fsync."""
        key = (topic, partition)
        filesystem = self.files.filesystem
        filesystem.rename(path, self.path_of(topic, partition))
        try:
            filesystem.sync_directory(self.path)
            self._log_starts[key] = log_start_offset
            self._recovery_points[key] = recovery_point
            self._high_watermarks[key] = high_watermark
            self._cleaner_offsets.pop(key, None)
            log = self._new_log(key, config, is_clean=True)
            log.load()
        except BaseException:
            self.logs.pop(key, None)
            for offsets in self._all_offsets:
                offsets.pop(key, None)
            filesystem.rename(self.path_of(topic, partition), path)
            raise
        self._found.add(key)
        log.recovery_point = recovery_point
        return log

    def end_offset_on_disk(self, topic: str, partition: int) -> int:
        """Where the log ends, found out as a start finds it out. For a partition that two directories hold."""
        key = (topic, partition)
        loaded = load_log(
            FileCache(self.files.filesystem),
            self.path_of(topic, partition),
            LogConfig(),
            log_start_offset=self._log_starts.get(key, 0),
            recovery_point=self._recovery_points.get(key, 0),
            cleaner_offset=self._cleaner_offsets.get(key, 0),
            is_clean=self.was_clean,
        )
        for segment in loaded.segments:
            segment.close()
        if loaded.was_shortened:
            self._shortened.add(key)
        return loaded.log_end_offset

    def sync(self) -> None:
        """The names of its partitions are on the disk. Blocks."""
        self.files.filesystem.sync_directory(self.path)

    def purge_deleted(self) -> int:
        """Removes the deleted partitions that nobody reads. How many are left. Blocks on large ones."""
        self.remove_directories(self.take_purgeable())
        return len(self._deleted)

    def take_purgeable(self) -> list[str]:
        """The directories of deleted partitions that nobody reads any more, their files closed: here, since the cache
        of open files is the loop's alone. The caller removes them."""
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
        """Blocks on large ones: for a thread. What cannot be removed is found again at the next start."""
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self.files.filesystem.remove_directory(path)

    # Checkpoints

    def checkpoint_recovery_points(self) -> None:
        self.write_checkpoints([self._recovery_point_checkpoint()])

    def checkpoint_high_watermarks(self) -> None:
        self.write_checkpoints([self._high_watermark_checkpoint()])

    def checkpoint_log_starts(self) -> None:
        self.write_checkpoints([self._log_start_checkpoint()])

    def take_checkpoints(self) -> list[tuple[str, dict[TopicPartition, int]]]:
        """All as they are now; the caller has them written, in a thread."""
        return [
            self._recovery_point_checkpoint(),
            self._high_watermark_checkpoint(),
            self._log_start_checkpoint(),
            *self.take_cleaner_checkpoint(),
        ]

    def take_cleaner_checkpoint(self) -> list[tuple[str, dict[TopicPartition, int]]]:
        """How far the logs are compacted, if that has changed: most directories have no such file."""
        offsets = self._cleaner_offsets
        for key, log in self.logs.items():
            if log.cleaner_offset is not None:
                offsets[key] = log.cleaner_offset
        if offsets == self._written_cleaner_offsets:
            return []
        self._written_cleaner_offsets = dict(offsets)
        return [(f"{self.path}/{CLEANER_CHECKPOINT}", self._written_cleaner_offsets)]

    def write_checkpoints(self, checkpoints: Iterable[tuple[str, dict[TopicPartition, int]]]) -> None:
        """Blocks on fsync. Not two at a time."""
        for path, offsets in checkpoints:
            write_offsets(self.files.filesystem, path, offsets)

    def _recovery_point_checkpoint(self) -> tuple[str, dict[TopicPartition, int]]:
        self._recovery_points.update((key, log.recovery_point) for key, log in self.logs.items())
        return f"{self.path}/{RECOVERY_POINT_CHECKPOINT}", dict(self._recovery_points)

    def _high_watermark_checkpoint(self) -> tuple[str, dict[TopicPartition, int]]:
        self._high_watermarks.update((key, log.high_watermark) for key, log in self.logs.items() if log.is_loaded)
        return f"{self.path}/{REPLICATION_CHECKPOINT}", dict(self._high_watermarks)

    def _log_start_checkpoint(self) -> tuple[str, dict[TopicPartition, int]]:
        """Only where the start lies within a segment: otherwise the files tell it."""
        for key, log in self.logs.items():
            if log.is_loaded:
                if log.log_start_offset > log.segment_base_offsets[0]:
                    self._log_starts[key] = log.log_start_offset
                else:
                    self._log_starts.pop(key, None)
        return f"{self.path}/{LOG_START_CHECKPOINT}", dict(self._log_starts)

    def close(self, now_ms: int) -> None:
        """A clean stop: everything on the disk, then the word that it is, then the lock."""
        filesystem = self.files.filesystem
        loaded = [log for log in self.logs.values() if log.is_loaded]
        unflushed = [log for log in loaded if log.recovery_point < log.log_end_offset]
        for log in unflushed if len(unflushed) <= _FEW_LOGS else ():
            log.flush(now_ms)
        self.checkpoint_high_watermarks()
        self.checkpoint_log_starts()
        self.write_checkpoints(self.take_cleaner_checkpoint())
        end_offsets = [(log, log.log_end_offset) for log in loaded]
        for log in loaded:
            log.close()
        if any(log.recovery_point < end_offset for log, end_offset in end_offsets):
            filesystem.sync_all()
            for log, end_offset in end_offsets:
                log.recovery_point = end_offset
        self.checkpoint_recovery_points()
        if self.was_clean or len(loaded) == len(self._found):
            # After a crash, a log that nobody used was not recovered yet: then the next start has to do it.
            filesystem.replace(f"{self.path}/{_CLEAN_SHUTDOWN}", _CLEAN_SHUTDOWN_CONTENT)
        self.release()

    def release(self) -> None:
        """Only the lock, as after a crash or a broken disk."""
        self._lock.release()
