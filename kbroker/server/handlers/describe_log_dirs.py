"""DescribeLogDirs (35), v0-4: the data directories, and how large the logs in them are.

Null asks for every partition. v3: an error for all of it; v4: how large each file system is, and how much is free.
A partition on its way to another directory is told from both, as a future one where it goes to.
A log that nobody has used since the start is measured by its files, in a thread, and stays unread.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

import trio

from kbroker.errors import StorageFailure
from kbroker.log.directory import DataDirectory
from kbroker.log.filesystem import FileSystem
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_log_dirs as messages
from kbroker.server.authorization import Operation
from kbroker.server.permissions import allows_cluster

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle"]

Key = tuple[str, int]

_SLICE: Final = 500  # logs that are measured before others have their turn
_UNKNOWN_SPACE: Final = (-1, -1)


async def handle(context: Context, request: Request) -> Any:
    if not allows_cluster(context, request, Operation.DESCRIBE):
        # Versions that have no place for the error say it by an empty list.
        return messages.RESPONSE(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    wanted = None
    if request.body.topics is not None:
        wanted = {(each.topic, index) for each in request.body.topics for index in each.partitions}
    directories = {each.path: each for each in context.partitions.directories}
    return messages.RESPONSE(
        results=[
            messages.DescribeLogDirsResult(log_dir=_absolute(path), error_code=ErrorCode.KAFKA_STORAGE_ERROR)
            if gate.is_offline
            else await _result(context, directories[path], wanted)
            for path, gate in context.partitions.gates.items()
        ]
    )


async def _result(context: Context, directory: DataDirectory, wanted: Collection[Key] | None) -> Any:
    sizes = await _sizes(directory, [key for key in directory.logs if wanted is None or key in wanted])
    futures = [each for each in context.partitions.moves.futures_in(directory) if wanted is None or each[:2] in wanted]
    total, usable = await trio.to_thread.run_sync(_space, directory.path)
    topics: dict[str, list[Any]] = {}
    for (topic, index), size in sizes.items():
        partition = messages.DescribeLogDirsPartition(partition_index=index, partition_size=size)
        topics.setdefault(topic, []).append(partition)
    for future in futures:
        partition = messages.DescribeLogDirsPartition(
            partition_index=future.partition,
            partition_size=future.size_bytes,
            offset_lag=future.offset_lag,
            is_future_key=True,
        )
        topics.setdefault(future.topic, []).append(partition)
    return messages.DescribeLogDirsResult(
        log_dir=_absolute(directory.path),
        topics=[messages.DescribeLogDirsTopic(name=name, partitions=each) for name, each in topics.items()],
        total_bytes=total,
        usable_bytes=usable,
    )


def _absolute(path: str) -> str:
    return os.path.abspath(path)


async def _sizes(directory: DataDirectory, keys: list[Key]) -> dict[Key, int]:
    sizes: dict[Key, int] = {}
    unread: list[Key] = []
    for place, key in enumerate(keys):
        log = directory.logs.get(key)  # None: deleted while others had their turn
        if log is not None and log.is_loaded:
            sizes[key] = log.size_bytes
        elif log is not None:
            unread.append(key)
        if place % _SLICE == _SLICE - 1:
            await trio.lowlevel.checkpoint()
    if unread:
        paths = [directory.path_of(*key) for key in unread]
        measured = await trio.to_thread.run_sync(_sizes_on_disk, directory.files.filesystem, paths)
        sizes.update((key, size) for key, size in zip(unread, measured, strict=True) if size is not None)
    return sizes


def _sizes_on_disk(filesystem: FileSystem, paths: list[str]) -> list[int | None]:
    return [_size_on_disk(filesystem, path) for path in paths]


def _size_on_disk(filesystem: FileSystem, path: str) -> int | None:
    """None for a log that is gone in the meantime."""
    try:
        names = [name for name in filesystem.list_names(path) if name.endswith(".log")]
        return sum(filesystem.size(f"{path}/{name}") for name in names)
    except (StorageFailure, OSError):
        return None


def _space(path: str) -> tuple[int, int]:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return _UNKNOWN_SPACE
    return usage.total, usage.free
