"""OffsetForLeaderEpoch (23), v0-4: where an epoch of the leader ended, so that a truncation shows.

Answers with the largest epoch known here that is not above the one asked for, and its end; -1 and -1 if there is none.
v2: the client's current leader epoch fences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.errors import StorageFailure
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import offset_for_leader_epoch as messages
from kbroker.server.authorization import Operation
from kbroker.server.hosted_partition import hosted_partition
from kbroker.server.permissions import allows_cluster, allows_topic

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]


def handle(context: Context, request: Request) -> Any:
    is_broker = allows_cluster(context, request, Operation.CLUSTER_ACTION)
    results = []
    for topic in request.body.topics:
        if is_broker or allows_topic(context, request, Operation.DESCRIBE, topic.topic):
            partitions = [_answer(context, topic.topic, each) for each in topic.partitions]
        else:
            partitions = [_failure(each.partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for each in topic.partitions]
        results.append(messages.OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))
    return messages.RESPONSE(topics=results)


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(
        topics=[
            messages.OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[_failure(each.partition, code) for each in topic.partitions]
            )
            for topic in request.body.topics
        ]
    )


def _answer(context: Context, name: str, wanted: Any) -> Any:
    index = wanted.partition
    partition = hosted_partition(context, name, index, leader_epoch=wanted.current_leader_epoch)
    if isinstance(partition, ErrorCode):
        return _failure(index, partition)
    try:
        epoch, end_offset = partition.end_offset_for_epoch(wanted.leader_epoch)
    except StorageFailure:
        return _failure(index, ErrorCode.KAFKA_STORAGE_ERROR)
    return messages.EpochEndOffset(partition=index, leader_epoch=epoch, end_offset=end_offset)


def _failure(index: int, code: int) -> Any:
    return messages.EpochEndOffset(partition=index, error_code=code)
