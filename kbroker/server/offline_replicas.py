"""How metadata tells of partitions whose data directory here is broken: as Kafka does, that nobody leads them.

What this broker knows of itself; what others are to know of it is the image's matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kbroker.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from kbroker.server.context import Context

__all__ = ["mark_offline"]


def mark_offline(context: Context, topics: Iterable[Any]) -> None:
    """Of Metadata and of DescribeTopicPartitions alike."""
    if not context.partitions.has_offline:
        return
    own_id = context.broker_id
    for topic in topics:
        for partition in topic.partitions:
            if not context.partitions.is_offline(topic.name, partition.partition_index):
                continue
            partition.isr_nodes = tuple(each for each in partition.isr_nodes if each != own_id)
            partition.offline_replicas = (*partition.offline_replicas, own_id)
            if partition.leader_id == own_id:
                partition.leader_id = -1
                partition.error_code = ErrorCode.LEADER_NOT_AVAILABLE
