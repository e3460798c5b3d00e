"""Recovers logs at the start, after an unclean shutdown: scans them in a thread before the broker serves clients.

Logs that are found damaged later: background_recovery.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

import trio

from kbroker.clock import Clock
from kbroker.errors import StorageFailure
from kbroker.log.partition_log import PartitionLog
from kbroker.replication.log_dirs import LogDirs
from kbroker.replication.partition import Partition
from kbroker.replication.storage_gate import StorageGate

__all__ = ["recover_logs"]

logger = logging.getLogger(__name__)

_CHUNK: Final = 64


async def recover_logs(partitions: list[Partition], log_dirs: LogDirs, clock: Clock) -> None:
    """Recovers the logs one after the other. A failure closes the gate of the log's directory.

    Uses one thread only: all logs share a cache of open files, which is not thread-safe.
    """
    logger.warning("Recovering %d logs since no clean shutdown file was found", len(partitions))
    started = clock.monotonic()
    for chunk in _chunks(partitions):
        handles = [partition.log_handle for partition in chunk]
        gates = [log_dirs.gate_of(partition) for partition in chunk]
        failures = await trio.to_thread.run_sync(_recover_all, handles, gates, clock.now_ms())
        for partition, failure in zip(chunk, failures, strict=True):
            if failure is not None:
                log_dirs.gate_of(partition).close(failure)
            else:
                partition.on_recovered()
                if partition.log.was_shortened:
                    _log_truncated(partition)
    logger.info("Recovered %d logs in %.2f s", len(partitions), clock.monotonic() - started)


def _log_truncated(partition: Partition) -> None:
    end = partition.log.log_end_offset
    fields = {"topic": partition.topic, "partition": partition.index, "log_end_offset": end}
    text = "The log of %s-%d had an incomplete end and was truncated to offset %d"
    logger.warning(text, partition.topic, partition.index, end, extra=fields)


def _chunks(partitions: list[Partition]) -> Iterator[list[Partition]]:
    for start in range(0, len(partitions), _CHUNK):
        yield partitions[start : start + _CHUNK]


def _recover_all(handles: list[PartitionLog], gates: list[StorageGate], now_ms: int) -> list[StorageFailure | None]:
    failures: list[StorageFailure | None] = []
    for handle, gate in zip(handles, gates, strict=True):
        try:
            log = gate.with_reserve(handle.recover)
            if log.config.flush_messages == 1:
                # With flush.messages=1 consumers see fsynced records only; the crash may have left others.
                log.flush(now_ms)
        except StorageFailure as failure:
            failures.append(failure)
        else:
            failures.append(None)
    return failures
