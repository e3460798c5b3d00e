"""Opens the data directories of a broker and the replicas in them, and closes them at the end."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kbroker.clock import Clock
from kbroker.config.broker import BrokerConfig
from kbroker.errors import StorageFailure, UserError
from kbroker.log.directory import DataDirectory, normalized
from kbroker.log.files.file_cache import FileCache
from kbroker.replication.assigned_replicas import AssignedReplicas
from kbroker.replication.flusher import Flusher
from kbroker.replication.log_dirs import LogDirs

__all__ = ["open_replicas", "set_cluster_id"]


@contextmanager
def open_replicas(
    files: FileCache, paths: Sequence[str], broker_id: int, config: BrokerConfig, flusher: Flusher, clock: Clock
) -> Iterator[AssignedReplicas]:
    """Opens the replicas, and closes them if the body succeeds.

    After an exception the directories are only unlocked: without the marker of a clean shutdown, the next start
    recovers their logs.
    """
    directories, broken = _open_directories(files, paths, broker_id, config.kbroker_log_dir_reserve_bytes)
    try:
        log_dirs = LogDirs(directories, clock=clock, random_name=_random_name, broken=broken, broker_id=broker_id)
        log_dirs.check_space()
        replicas = AssignedReplicas(
            log_dirs,
            broker_id=broker_id,
            config=config,
            flusher=flusher,
            clock=clock,
            random_name=_random_name,
        )
        yield replicas
    except BaseException:
        for directory in directories:
            directory.release()
        raise
    replicas.close()


def _random_name() -> str:
    return os.urandom(16).hex()


def set_cluster_id(log_dirs: LogDirs, cluster_id: str) -> None:
    for directory in log_dirs.directories:
        try:
            directory.set_cluster_id(cluster_id)
        except StorageFailure as failure:
            log_dirs.gates[directory.path].close(failure)


def _open_directories(
    files: FileCache, paths: Sequence[str], broker_id: int, reserve_bytes: int
) -> tuple[list[DataDirectory], dict[str, StorageFailure]]:
    """Returns the usable directories, and the failures of the others by path.

    As in Kafka, a broker starts without a broken directory; but not without the first one, which has the metadata.
    """
    opened: list[DataDirectory] = []
    broken: dict[str, StorageFailure] = {}
    try:
        for path in paths:
            try:
                directory = DataDirectory.open(
                    files,
                    path,
                    broker_id=broker_id,
                    reserve_bytes=reserve_bytes,
                    random_below=random.Random().randrange,
                )
            except StorageFailure as failure:
                if not opened:
                    raise UserError(f"Cannot use the data directory: {failure}") from failure
                broken[normalized(path)] = StorageFailure(str(failure))  # also if full: its contents are unknown
            else:
                opened.append(directory)
    except BaseException:
        for directory in opened:
            directory.release()
        raise
    return opened, broken
