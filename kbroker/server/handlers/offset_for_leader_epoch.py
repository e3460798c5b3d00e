"""OffsetForLeaderEpoch (23), v0-4: returns the end offset of a leader epoch, to detect truncation (KIP-101).

The response has the largest known epoch that is not above the requested one, and its end offset; -1 and -1 if there is
none. v2: the client's current leader epoch, which fences (KIP-320).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from kbroker.errors import StorageFailure
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import offset_for_leader_epoch as messages
from kbroker.server.access.permissions import allows_cluster, allows_topic
from kbroker.server.topics.hosted_partition import hosted_partition
from kbroker.time_slice import finish_in_slices

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]


def handle(context: Context, request: Request) -> Any:
    return finish_in_slices(context.clock, _respond(context, request))


def _respond(context: Context, request: Request) -> Generator[None, None, Any]:
    is_broker = allows_cluster(context, request, AclOperation.CLUSTER_ACTION, quiet=True)
    results = []
    for topic in request.body.topics:
        is_allowed = is_broker or allows_topic(context, request, AclOperation.DESCRIBE, topic.topic)
        partitions = []
        for requested in topic.partitions:
            if is_allowed:
                partitions.append(_result(context, topic.topic, requested))
            else:
                partitions.append(_failure(requested.partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            yield
        results.append(messages.OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))
        yield
    return messages.RESPONSE(topics=results)


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(
        topics=[
            messages.OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[_failure(requested.partition, code) for requested in topic.partitions]
            )
            for topic in request.body.topics
        ]
    )


def _result(context: Context, name: str, requested: Any) -> Any:
    index = requested.partition
    partition = hosted_partition(context, name, index, leader_epoch=requested.current_leader_epoch)
    if isinstance(partition, ErrorCode):
        return _failure(index, partition)
    try:
        epoch, end_offset = partition.end_offset_for_epoch(requested.leader_epoch)
    except StorageFailure:
        return _failure(index, ErrorCode.KAFKA_STORAGE_ERROR)
    return messages.EpochEndOffset(partition=index, leader_epoch=epoch, end_offset=end_offset)


def _failure(index: int, code: int) -> Any:
    return messages.EpochEndOffset(partition=index, error_code=code)
