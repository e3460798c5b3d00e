"""Sizes of logs that nobody has used since the start. They stay unread: their files are looked at once, in a thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import trio

from kbroker.errors import StorageFailure
from kbroker.log.filesystem import FileSystem
from kbroker.replication.partition import Partition
from kbroker.replication.partition_table import PartitionTable

__all__ = ["LogSize", "LogSizes"]


class LogSize(NamedTuple):
    bytes: int
    segments: int


class LogSizes:
    def __init__(self) -> None:
        self._known: dict[Partition, LogSize | None] = {}

    async def measure_unread(self, table: PartitionTable) -> Mapping[Partition, LogSize | None]:
        """None for one whose files cannot be looked at."""
        unread = [partition for partition in table if not partition.log.is_loaded]
        new = [partition for partition in unread if partition not in self._known]
        if new:
            paths = [partition.log.path for partition in new]
            filesystem = table.directories[0].files.filesystem
            sizes = await trio.to_thread.run_sync(_measure, filesystem, paths)
            self._known.update(zip(new, sizes, strict=True))
        self._known = {partition: self._known[partition] for partition in unread}
        return self._known


def _measure(filesystem: FileSystem, paths: Sequence[str]) -> list[LogSize | None]:
    return [_size_on_disk(filesystem, path) for path in paths]


def _size_on_disk(filesystem: FileSystem, path: str) -> LogSize | None:
    try:
        names = [name for name in filesystem.list_names(path) if name.endswith(".log")]
        # A new log gets its first segment when it is first used.
        return LogSize(sum(filesystem.size(f"{path}/{name}") for name in names), max(len(names), 1))
    except (StorageFailure, OSError):
        return None
