"""Data directories of the brokers, and the space of their disks (DescribeLogDirs)."""

from __future__ import annotations

from typing import Final, NamedTuple

from kbroker.client.cluster import Cluster
from kbroker.client.failures import ConnectionFailed, NotServed, error_code
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.registry import api

__all__ = ["LogDir", "describe_log_dirs"]

DESCRIBE_LOG_DIRS: Final = api(35)
_FIRST_WITH_SPACE: Final = 4


class LogDir(NamedTuple):
    path: str
    total_bytes: int
    """Size of the volume; -1 if it is not known."""
    usable_bytes: int
    """Bytes that records may use; 0 if the disk is full, -1 if it is not known."""
    error: str | None


async def describe_log_dirs(cluster: Cluster, broker_id: int) -> list[LogDir]:
    """Returns the data directories of a broker. Empty if the broker is not reachable, or too old to know its space."""
    try:
        connection = await cluster.broker_connection(broker_id)
        response = await connection.send(DESCRIBE_LOG_DIRS, at_least=_FIRST_WITH_SPACE, topics=[])
    except (ConnectionFailed, NotServed):
        return []
    return [
        LogDir(
            result.log_dir,
            result.total_bytes,
            result.usable_bytes,
            None if result.error_code == ErrorCode.NONE else error_code(result.error_code).name,
        )
        for result in response.results
    ]
