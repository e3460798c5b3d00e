"""Sizes of logs that are not loaded yet. Measures their files once, in a thread, without loading the logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import trio

from kbroker.errors import StorageFailure
from kbroker.log.files.filesystem import FileSystem
from kbroker.replication.partition import Partition
from kbroker.replication.partition_table import PartitionTable

__all__ = ["LogSize", "LogSizes"]


class LogSize(NamedTuple):
    bytes: int
    segments: int


class LogSizes:
    def __init__(self) -> None:
        self._known: dict[Partition, LogSize | None] = {}

    async def measure_unloaded(
        self, table: PartitionTable, filesystem: FileSystem
    ) -> Mapping[Partition, LogSize | None]:
        """Returns the size of each log that is not loaded; None if its files cannot be read."""
        unloaded = [partition for partition in table if partition.log_handle.opened is None]
        new = [partition for partition in unloaded if partition not in self._known]
        if new:
            paths = [partition.log_handle.path for partition in new]
            sizes = await trio.to_thread.run_sync(_measure, filesystem, paths)
            self._known.update(zip(new, sizes, strict=True))
        self._known = {partition: self._known[partition] for partition in unloaded}
        return self._known


def _measure(filesystem: FileSystem, paths: Sequence[str]) -> list[LogSize | None]:
    return [_size_on_disk(filesystem, path) for path in paths]


def _size_on_disk(filesystem: FileSystem, path: str) -> LogSize | None:
    try:
        names = [name for name in filesystem.list_names(path) if name.endswith(".log")]
        # A new log has no file yet, but counts as one segment, as after its first use.
        return LogSize(sum(filesystem.size(f"{path}/{name}") for name in names), max(len(names), 1))
    except (StorageFailure, OSError):
        return None
