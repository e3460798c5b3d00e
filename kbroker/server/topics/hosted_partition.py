"""Finds the partition of a request if this broker leads it, else the error code for the client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from kbroker.replication.partition import Partition
    from kbroker.server.context import Context

__all__ = ["absence", "hosted_partition"]


def hosted_partition(context: Context, topic_name: str, index: int, *, leader_epoch: int = -1) -> Partition | ErrorCode:
    """Returns the partition, or an error code. `leader_epoch`: the client's current leader epoch, -1 if not sent."""
    partition = context.partitions.get(topic_name, index)
    if partition is None:
        return absence(context, topic_name, index, leader_epoch=leader_epoch)
    return partition.check_leader_epoch(leader_epoch) or partition


def absence(context: Context, topic_name: str, index: int, *, leader_epoch: int = -1) -> ErrorCode:
    """Returns the reason why this broker does not lead the partition: offline directory, unknown, or not the leader.

    A follower compares the client's leader epoch first, as in Kafka.
    """
    if context.log_dirs.is_offline(topic_name, index):
        return ErrorCode.KAFKA_STORAGE_ERROR
    if context.controller.image.partition(topic_name, index) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    follower = context.partitions.follower(topic_name, index)
    code = ErrorCode.NONE if follower is None else follower.check_leader_epoch(leader_epoch)
    return code or ErrorCode.NOT_LEADER_OR_FOLLOWER
