"""Kafka's checkpoint files: a version line, a count line, then one line for each entry, fields separated by a space.

The files at the top of a data directory (recovery points, high watermarks, log start offsets, cleaner offsets) map a
partition to an offset. They are replaced by renaming, so that a crash leaves the old file or the new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kbroker.log.files.filesystem import FileSystem
from kbroker.names import TopicPartition

__all__ = [
    "CLEANER_CHECKPOINT",
    "LOG_START_CHECKPOINT",
    "NO_OFFSETS",
    "RECOVERY_POINT_CHECKPOINT",
    "REPLICATION_CHECKPOINT",
    "CheckpointedOffsets",
    "decode_lines",
    "encode_lines",
    "read_offsets",
    "write_offsets",
]

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
REPLICATION_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
_VERSION = 0


class CheckpointedOffsets(NamedTuple):
    """Offsets of one log as the checkpoint files of its data directory have them."""

    log_start_offset: int = 0
    recovery_point: int = 0
    high_watermark: int = 0
    cleaner_offset: int | None = None
    """Offset up to which the log has been compacted; None: never compacted."""

    @property
    def least_end_offset(self) -> int:
        """Returns a lower bound of the log end offset at the time of the checkpoints."""
        return max(self.log_start_offset, self.recovery_point, self.high_watermark)


NO_OFFSETS = CheckpointedOffsets()


def encode_lines(entries: Iterable[tuple[object, ...]]) -> bytes:
    lines = [" ".join(map(str, entry)) for entry in entries]
    return "\n".join([str(_VERSION), str(len(lines)), *lines, ""]).encode()


def decode_lines(content: bytes) -> list[list[str]]:
    """Returns the fields of each line. Raises ValueError if version or count are wrong."""
    lines = content.decode().split("\n")
    if len(lines) < 2 or int(lines[0]) != _VERSION:
        raise ValueError("Unrecognized version of the checkpoint file")
    entries = [line.split(" ") for line in lines[2:] if line]
    if len(entries) != int(lines[1]):
        raise ValueError(f"Expected {lines[1]} entries in checkpoint file, but found only {len(entries)}")
    return entries


def read_offsets(filesystem: FileSystem, path: str) -> dict[TopicPartition, int]:
    """Returns the offsets; empty if the file is missing or damaged. Recovery then checks the whole log."""
    try:
        return {
            (topic, int(partition)): int(offset) for topic, partition, offset in decode_lines(filesystem.read(path))
        }
    except (FileNotFoundError, ValueError):
        return {}


def write_offsets(filesystem: FileSystem, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    filesystem.replace(path, encode_lines((topic, partition, offset) for (topic, partition), offset in offsets.items()))
