"""Requests for reassignments: the layout of the cluster, starting, listing and cancelling moves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from kbroker.client.admin.log_dirs import LogDir, describe_log_dirs
from kbroker.client.cluster import Cluster
from kbroker.client.connection import REQUEST_SECONDS, BrokerConnection
from kbroker.client.controller_requests import send_to_controller
from kbroker.client.failures import BrokerRefusal
from kbroker.client.reassignment.layout import ClusterLayout, PartitionLayout, PartitionMove, partition_text
from kbroker.errors import UserError
from kbroker.names import TopicPartition
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.registry import api

__all__ = ["cancel_moves", "copied_bytes", "list_moves", "read_layout", "start_moves"]

ALTER_PARTITION_REASSIGNMENTS: Final = api(45)
LIST_PARTITION_REASSIGNMENTS: Final = api(46)

_TIMEOUT_MS: Final = 60_000
_SUBJECT: Final = "reassignment of partitions"


async def read_layout(cluster: Cluster) -> ClusterLayout:
    """Returns the live brokers and all partitions, with the size of the largest replica of each."""
    topics = await cluster.topics()
    sizes: dict[TopicPartition, int] = defaultdict(int)
    for broker_id in sorted(cluster.brokers):
        for key, size_bytes in _sizes(await describe_log_dirs(cluster, broker_id)).items():
            sizes[key] = max(sizes[key], size_bytes)
    partitions = (
        PartitionLayout(
            topic.name,
            partition.number,
            partition.replicas,
            partition.isr,
            partition.leader,
            sizes[topic.name, partition.number],
        )
        for topic in topics
        for partition in topic.partitions
    )
    return ClusterLayout({broker.node_id: broker.rack for broker in cluster.brokers.values()}, tuple(partitions))


def _sizes(directories: Iterable[LogDir]) -> dict[TopicPartition, int]:
    return {
        (replica.topic, replica.partition): replica.size_bytes
        for directory in directories
        for replica in directory.replicas
        if not replica.is_future
    }


async def list_moves(cluster: Cluster, layout: ClusterLayout | None = None) -> list[PartitionMove]:
    """Returns the reassignments under way, sorted. `layout`: for the leaders and sizes, which the response lacks."""

    async def send(connection: BrokerConnection) -> Any:
        return await connection.send(
            LIST_PARTITION_REASSIGNMENTS,
            topics=None,
            timeout_ms=_TIMEOUT_MS,
            timeout_s=_TIMEOUT_MS / 1000 + REQUEST_SECONDS,
        )

    response = await send_to_controller(cluster, _SUBJECT, send)
    known = {} if layout is None else {partition.key: partition for partition in layout.partitions}
    moves = []
    for topic in response.topics:
        for partition in topic.partitions:
            adding, removing = set(partition.adding_replicas), set(partition.removing_replicas)
            found = known.get((topic.name, partition.partition_index))
            moves.append(
                PartitionMove(
                    topic.name,
                    partition.partition_index,
                    tuple(broker_id for broker_id in partition.replicas if broker_id not in adding),
                    tuple(broker_id for broker_id in partition.replicas if broker_id not in removing),
                    -1 if found is None else found.leader,
                    0 if found is None else found.size_bytes,
                )
            )
    return sorted(moves)


async def start_moves(cluster: Cluster, moves: Collection[PartitionMove]) -> None:
    """Starts moves. Raises the first refusal if some are refused; the other moves have started then."""
    refusals = await _alter(cluster, {move.key: move.after for move in moves})
    for refusal in refusals:
        raise refusal


async def cancel_moves(cluster: Cluster, moves: Collection[PartitionMove]) -> None:
    """Cancels moves: the partitions get their original replicas. A move that has finished by now is left alone."""
    for refusal in await _alter(cluster, dict.fromkeys((move.key for move in moves), None)):
        if refusal.code is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
            raise refusal


async def _alter(cluster: Cluster, wanted: Mapping[TopicPartition, Sequence[int] | None]) -> list[BrokerRefusal]:
    from kbroker.protocol.messages.alter_partition_reassignments import ReassignablePartition, ReassignableTopic

    topics: dict[str, list[Any]] = defaultdict(list)
    for (name, index), replicas in wanted.items():
        topics[name].append(
            ReassignablePartition(partition_index=index, replicas=None if replicas is None else list(replicas))
        )

    async def send(connection: BrokerConnection) -> Any:
        return await connection.send(
            ALTER_PARTITION_REASSIGNMENTS,
            topics=[ReassignableTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
            timeout_ms=_TIMEOUT_MS,
            timeout_s=_TIMEOUT_MS / 1000 + REQUEST_SECONDS,
        )

    response = await send_to_controller(cluster, _SUBJECT, send)
    return [
        BrokerRefusal(
            partition.error_code, partition_text((topic.name, partition.partition_index)), partition.error_message
        )
        for topic in response.responses
        for partition in topic.partitions
        if partition.error_code != ErrorCode.NONE
    ]


async def copied_bytes(cluster: Cluster, moves: Iterable[PartitionMove]) -> int:
    """Returns the bytes that the new replicas of running moves have. A broker that does not answer counts as 0."""
    wanted: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    limits = {}
    for move in moves:
        limits[move.key] = move.size_bytes
        for broker_id in move.adding:
            wanted[broker_id][move.topic].append(move.partition)
    copied = 0
    for broker_id, partitions in wanted.items():
        if broker_id not in cluster.brokers:
            continue
        try:
            directories = await describe_log_dirs(cluster, broker_id, partitions)
        except UserError:
            continue  # the move goes on: only its progress is not known
        # A leader that grows meanwhile must not show more than was planned.
        copied += sum(min(size, limits.get(key, 0)) for key, size in _sizes(directories).items())
    return copied
