"""Data directories of the brokers, and the space of their disks (DescribeLogDirs)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kbroker.client.cluster import Cluster
from kbroker.client.failures import BrokerRefusal, ConnectionFailed, NotServed
from kbroker.protocol.error_codes import ErrorCode, error_code
from kbroker.protocol.registry import api

__all__ = ["LogDir", "ReplicaSize", "describe_log_dirs", "read_disk_space"]

DESCRIBE_LOG_DIRS: Final = api(35)
_FIRST_WITH_SPACE: Final = 4


class ReplicaSize(NamedTuple):
    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    """Records that the replica lacks: of the leader, or of the replica that a move copies."""
    is_future: bool
    """Whether this is the copy of a replica that moves between directories."""


class LogDir(NamedTuple):
    path: str
    total_bytes: int
    """Size of the volume; -1 if it is not known."""
    usable_bytes: int
    """Bytes that records may use; 0 if the disk is full, -1 if it is not known."""
    error: str | None
    replicas: tuple[ReplicaSize, ...] = ()


async def read_disk_space(cluster: Cluster, broker_id: int) -> list[LogDir]:
    """Returns the data directories of a broker without their replicas.

    Empty if the broker is not reachable, or too old to know its space.
    """
    try:
        connection = await cluster.broker_connection(broker_id)
        response = await connection.send(DESCRIBE_LOG_DIRS, at_least=_FIRST_WITH_SPACE, topics=[])
    except (ConnectionFailed, NotServed):
        return []
    return _log_dirs_of(response)


async def describe_log_dirs(
    cluster: Cluster, broker_id: int, partitions: Mapping[str, Sequence[int]] | None = None
) -> list[LogDir]:
    """Returns the data directories of a broker with their replicas of these partitions (None: all replicas)."""
    from kbroker.protocol.messages.describe_log_dirs import DescribableLogDirTopic

    topics = None
    if partitions is not None:
        topics = [DescribableLogDirTopic(topic=name, partitions=list(given)) for name, given in partitions.items()]
    connection = await cluster.broker_connection(broker_id)
    response = await connection.send(DESCRIBE_LOG_DIRS, topics=topics)
    if response.error_code != ErrorCode.NONE:
        raise BrokerRefusal(response.error_code, f"log dirs of broker {broker_id}")
    return _log_dirs_of(response)


def _log_dirs_of(response: Any) -> list[LogDir]:
    return [
        LogDir(
            result.log_dir,
            result.total_bytes,
            result.usable_bytes,
            None if result.error_code == ErrorCode.NONE else error_code(result.error_code).name,
            tuple(
                ReplicaSize(
                    topic.name,
                    partition.partition_index,
                    partition.partition_size,
                    partition.offset_lag,
                    partition.is_future_key,
                )
                for topic in sorted(result.topics, key=lambda topic: topic.name)
                for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
            ),
        )
        for result in response.results
    ]
