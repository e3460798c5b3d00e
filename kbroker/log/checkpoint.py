"""Kafka's small text files: a version line, a count line, then one line for each entry, fields apart by a blank.

Those at the top of a data directory (recovery points, high watermarks, log starts, how far compacted) map a partition
to an offset. Written beside and renamed over, so that a crash leaves the old one or the new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.log.filesystem import FileSystem

__all__ = [
    "CLEANER_CHECKPOINT",
    "LOG_START_CHECKPOINT",
    "RECOVERY_POINT_CHECKPOINT",
    "REPLICATION_CHECKPOINT",
    "TopicPartition",
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

TopicPartition = tuple[str, int]


def encode_lines(entries: Iterable[tuple[object, ...]]) -> bytes:
    lines = [" ".join(map(str, entry)) for entry in entries]
    return "\n".join([str(_VERSION), str(len(lines)), *lines, ""]).encode()


def decode_lines(content: bytes) -> list[list[str]]:
    """The fields of every line. ValueError if the file is not what its first two lines say."""
    lines = content.decode().split("\n")
    if len(lines) < 2 or int(lines[0]) != _VERSION:
        raise ValueError("a checkpoint of an unknown version")
    entries = [line.split(" ") for line in lines[2:] if line]
    if len(entries) != int(lines[1]):
        raise ValueError(f"a checkpoint that promises {lines[1]} entries has {len(entries)}")
    return entries


def read_offsets(filesystem: FileSystem, path: str) -> dict[TopicPartition, int]:
    """Empty if there is none, or if it makes no sense: recovery then starts from the beginning, which is safe."""
    try:
        return {
            (topic, int(partition)): int(offset) for topic, partition, offset in decode_lines(filesystem.read(path))
        }
    except (FileNotFoundError, ValueError):
        return {}


def write_offsets(filesystem: FileSystem, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    filesystem.replace(path, encode_lines((topic, partition, offset) for (topic, partition), offset in offsets.items()))
