"""DescribeLogDirs (35), v0-4: returns the data directories and the sizes of the logs in them (KIP-113).

Null topics mean all partitions. v3: a top-level error code. v4: total and usable bytes of each volume (KIP-827). A
partition that is moving to another directory is listed in both, in the target as a future replica. A log that has not
been loaded is measured by its files, in a thread, and stays unloaded.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Generator, Iterable
from typing import TYPE_CHECKING, Any, Final

import trio

from kbroker.clock import Clock
from kbroker.errors import StorageFailure
from kbroker.log.directory import DataDirectory
from kbroker.log.files.filesystem import FileSystem
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_log_dirs as messages
from kbroker.server.access.permissions import allows_cluster
from kbroker.time_slice import TimeSlice, run_in_slices

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]

Key = tuple[str, int]

_UNKNOWN_SPACE: Final = (-1, -1)


async def handle(context: Context, request: Request) -> Any:
    if not allows_cluster(context, request, AclOperation.DESCRIBE):
        # Before v3 the response has no error code: the empty list of directories reports the error.
        return messages.RESPONSE(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    wanted = None
    if request.body.topics is not None:
        wanted = await run_in_slices(context.clock, _keys(request.body.topics))
    directories = {directory.path: directory for directory in context.log_dirs.directories}
    return messages.RESPONSE(
        results=[
            messages.DescribeLogDirsResult(log_dir=_absolute(path), error_code=ErrorCode.KAFKA_STORAGE_ERROR)
            if gate.is_offline
            else await _result(context, directories[path], wanted)
            for path, gate in context.log_dirs.gates.items()
        ]
    )


def _keys(topics: Iterable[Any]) -> Generator[None, None, set[Key]]:
    keys = set()
    for topic in topics:
        for index in topic.partitions:
            keys.add((topic.topic, index))
            yield
        yield
    return keys


async def _result(context: Context, directory: DataDirectory, wanted: Collection[Key] | None) -> Any:
    sizes = await _sizes(context.clock, directory, [key for key in directory.logs if wanted is None or key in wanted])
    futures = [future for future in context.moves.futures_in(directory) if wanted is None or future[:2] in wanted]
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
        topics=[messages.DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
        total_bytes=total,
        usable_bytes=0 if context.log_dirs.gates[directory.path].is_full else usable,
    )


def _absolute(path: str) -> str:
    return os.path.abspath(path)


async def _sizes(clock: Clock, directory: DataDirectory, keys: list[Key]) -> dict[Key, int]:
    sizes: dict[Key, int] = {}
    unloaded: list[Key] = []
    time_slice = TimeSlice(clock)
    for key in keys:
        handle = directory.logs.get(key)  # None: deleted during a checkpoint below
        if handle is not None and (log := handle.opened) is not None:
            sizes[key] = log.size_bytes
        elif handle is not None:
            unloaded.append(key)
        await time_slice.checkpoint_if_over()
    if unloaded:
        paths = [directory.path_of(*key) for key in unloaded]
        measured = await trio.to_thread.run_sync(_sizes_on_disk, directory.files.filesystem, paths)
        sizes.update((key, size) for key, size in zip(unloaded, measured, strict=True) if size is not None)
    return sizes


def _sizes_on_disk(filesystem: FileSystem, paths: list[str]) -> list[int | None]:
    return [_size_on_disk(filesystem, path) for path in paths]


def _size_on_disk(filesystem: FileSystem, path: str) -> int | None:
    """Returns None for a log that was deleted in the meantime."""
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
