"""Marks partitions in metadata responses whose data directory on this broker is broken: without leader, as in Kafka.

Concerns this broker's own replicas only: the image has the state of other brokers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kbroker.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from kbroker.server.context import Context

__all__ = ["mark_offline"]


def mark_offline(context: Context, topics: Iterable[Any]) -> None:
    """Changes topics of a Metadata or DescribeTopicPartitions response in place."""
    if not context.log_dirs.has_offline:
        return
    own_id = context.broker_id
    for topic in topics:
        for partition in topic.partitions:
            if not context.log_dirs.is_offline(topic.name, partition.partition_index):
                continue
            if context.member is None:  # in a cluster the controller decides about the ISR, as in Kafka 3.9
                partition.isr_nodes = tuple(broker_id for broker_id in partition.isr_nodes if broker_id != own_id)
            if own_id not in partition.offline_replicas:
                partition.offline_replicas = (*partition.offline_replicas, own_id)
            if partition.leader_id == own_id:
                partition.leader_id = -1
                partition.error_code = ErrorCode.LEADER_NOT_AVAILABLE
