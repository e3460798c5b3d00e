"""The partition that a request names, if this broker leads it; else the code that tells the client where it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from kbroker.replication.partition import Partition
    from kbroker.server.context import Context

__all__ = ["absence", "hosted_partition"]


def hosted_partition(context: Context, topic_name: str, index: int, *, leader_epoch: int = -1) -> Partition | ErrorCode:
    """`leader_epoch`: the one that the client takes for the current one; -1 if it does not say."""
    partition = context.partitions.get(topic_name, index)
    if partition is None:
        return absence(context, topic_name, index)
    return partition.check_leader_epoch(leader_epoch) or partition


def absence(context: Context, topic_name: str, index: int) -> ErrorCode:
    """Why a partition is not led here: its directory is broken, somebody else leads it, or there is none."""
    if context.partitions.is_offline(topic_name, index):
        return ErrorCode.KAFKA_STORAGE_ERROR
    if context.controller.image.partition(topic_name, index) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NOT_LEADER_OR_FOLLOWER
