"""DeleteRecords (21), v0-2: records before an offset are no longer wanted; -1 stands for the high watermark.

Raises the log's start, at once and in order with all else; files go with the next look at retention. Answers with the
low watermark, which on one node is the log's start: there is no follower to wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import StorageFailure
from kbroker.names import is_internal_topic
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import delete_records as messages
from kbroker.server.authorization import Operation
from kbroker.server.hosted_partition import hosted_partition
from kbroker.server.permissions import allows_topic

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]

INVALID_LOW_WATERMARK: Final = -1


def handle(context: Context, request: Request) -> Any:
    return messages.RESPONSE(
        topics=[
            messages.DeleteRecordsTopicResult(name=topic.name, partitions=_topic(context, request, topic))
            for topic in request.body.topics
        ]
    )


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(
        topics=[
            messages.DeleteRecordsTopicResult(
                name=topic.name, partitions=[_failure(each.partition_index, code) for each in topic.partitions]
            )
            for topic in request.body.topics
        ]
    )


def _topic(context: Context, request: Request, topic: Any) -> list[Any]:
    if not allows_topic(context, request, Operation.DELETE, topic.name):
        return [_failure(each.partition_index, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for each in topic.partitions]
    # A partition that is named twice gets one answer, for what was said last.
    wanted = {each.partition_index: each.offset for each in topic.partitions}
    return [_delete(context, topic.name, index, offset) for index, offset in wanted.items()]


def _delete(context: Context, name: str, index: int, offset: int) -> Any:
    partition = hosted_partition(context, name, index)
    if isinstance(partition, ErrorCode):
        return _failure(index, partition)
    if is_internal_topic(name):
        return _failure(index, ErrorCode.INVALID_TOPIC_EXCEPTION)
    if not partition.log.config.is_deleted:
        return _failure(index, ErrorCode.POLICY_VIOLATION)
    try:
        outcome = partition.log.delete_records_before(offset)
    except StorageFailure:
        return _failure(index, ErrorCode.KAFKA_STORAGE_ERROR)
    if isinstance(outcome, ErrorCode):
        return _failure(index, outcome)
    return messages.DeleteRecordsPartitionResult(partition_index=index, low_watermark=outcome)


def _failure(index: int, code: int) -> Any:
    return messages.DeleteRecordsPartitionResult(
        partition_index=index, low_watermark=INVALID_LOW_WATERMARK, error_code=code
    )
