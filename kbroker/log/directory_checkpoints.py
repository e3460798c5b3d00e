"""Checkpoint files at the top of a data directory: recovery points, high watermarks, log starts, cleaner offsets.

`collect*` copies the current offsets, on the loop; `write` writes the copies, in a thread. Offsets of partitions that
are not open stay as they were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.log.files.checkpoint import (
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    CheckpointedOffsets,
    read_offsets,
    write_offsets,
)
from kbroker.log.files.filesystem import FileSystem
from kbroker.log.partition_log import PartitionLog
from kbroker.names import TopicPartition

__all__ = ["Checkpoint", "DirectoryCheckpoints"]

Checkpoint = tuple[str, dict[TopicPartition, int]]
"""Path and content of a checkpoint file."""

_Logs = Mapping[TopicPartition, PartitionLog]


class DirectoryCheckpoints:
    def __init__(self, filesystem: FileSystem, directory: str) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._recovery_points = self._read(RECOVERY_POINT_CHECKPOINT)
        self._high_watermarks = self._read(REPLICATION_CHECKPOINT)
        self._log_starts = self._read(LOG_START_CHECKPOINT)
        self._cleaner_offsets = self._read(CLEANER_CHECKPOINT)
        self._written_cleaner_offsets = dict(self._cleaner_offsets)

    def _read(self, name: str) -> dict[TopicPartition, int]:
        return read_offsets(self._filesystem, f"{self._directory}/{name}")

    def __getitem__(self, key: TopicPartition) -> CheckpointedOffsets:
        return CheckpointedOffsets(
            self._log_starts.get(key, 0),
            self._recovery_points.get(key, 0),
            self._high_watermarks.get(key, 0),
            self._cleaner_offsets.get(key),
        )

    def __setitem__(self, key: TopicPartition, offsets: CheckpointedOffsets) -> None:
        self.forget(key)
        self._log_starts[key] = offsets.log_start_offset
        self._recovery_points[key] = offsets.recovery_point
        self._high_watermarks[key] = offsets.high_watermark
        if offsets.cleaner_offset is not None:
            self._cleaner_offsets[key] = offsets.cleaner_offset

    def forget(self, key: TopicPartition) -> None:
        for offsets in (self._recovery_points, self._high_watermarks, self._log_starts, self._cleaner_offsets):
            offsets.pop(key, None)

    def collect(self, logs: _Logs) -> list[Checkpoint]:
        return [self.collect_recovery_points(logs), *self.collect_offsets(logs), *self.collect_cleaner_offsets(logs)]

    def collect_recovery_points(self, logs: _Logs) -> Checkpoint:
        self._recovery_points.update((key, log.recovery_point) for key, log in logs.items())
        return f"{self._directory}/{RECOVERY_POINT_CHECKPOINT}", dict(self._recovery_points)

    def collect_offsets(self, logs: _Logs) -> list[Checkpoint]:
        """Copies high watermarks and log start offsets.

        A log start offset is written only if it is within a segment: otherwise the first segment's name has it.
        """
        for key, handle in logs.items():
            if (log := handle.opened) is not None:
                self._high_watermarks[key] = log.high_watermark
                if log.log_start_offset > log.segments.first.base_offset:
                    self._log_starts[key] = log.log_start_offset
                else:
                    self._log_starts.pop(key, None)
        return [
            (f"{self._directory}/{REPLICATION_CHECKPOINT}", dict(self._high_watermarks)),
            (f"{self._directory}/{LOG_START_CHECKPOINT}", dict(self._log_starts)),
        ]

    def collect_cleaner_offsets(self, logs: _Logs) -> list[Checkpoint]:
        """Copies the offsets up to which logs are compacted. Empty if none has changed: most directories have none."""
        offsets = self._cleaner_offsets
        for key, log in logs.items():
            if log.cleaner_offset is not None:
                offsets[key] = log.cleaner_offset
        if offsets == self._written_cleaner_offsets:
            return []
        self._written_cleaner_offsets = dict(offsets)
        return [(f"{self._directory}/{CLEANER_CHECKPOINT}", self._written_cleaner_offsets)]

    def write(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Blocks on fsync. Not in two threads at once: the names of the files are fixed."""
        for path, offsets in checkpoints:
            write_offsets(self._filesystem, path, offsets)
