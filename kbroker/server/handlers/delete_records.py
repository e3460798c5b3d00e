"""DeleteRecords (21), v0-2: deletes the records before an offset; offset -1 means the high watermark (KIP-107).

Advances the log start offset at once; retention removes the segment files later. Responds with the low watermark, the
smallest log start offset of all live replicas, when followers have advanced theirs or the timeout has passed.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import StorageFailure
from kbroker.names import is_internal_topic
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import delete_records as messages
from kbroker.server.access.permissions import allows_topic
from kbroker.server.requests.delayed_operation import DelayedOperation
from kbroker.server.topics.hosted_partition import hosted_partition
from kbroker.time_slice import finish_in_slices

if TYPE_CHECKING:
    from kbroker.replication.leader_state import LeaderState
    from kbroker.replication.partition import Partition
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

INVALID_LOW_WATERMARK: Final = -1

Waiting = list[tuple["Partition", "LeaderState", Any]]
"""Partitions whose followers have not yet advanced their log start offset, with the results to complete."""


def handle(context: Context, request: Request) -> Any:
    return finish_in_slices(context.clock, _respond(context, request))


def _respond(context: Context, request: Request) -> Generator[None, None, Any]:
    waiting: Waiting = []
    results = []
    for topic in request.body.topics:
        is_allowed = allows_topic(context, request, AclOperation.DELETE, topic.name)
        partitions = []
        # A partition that is named twice gets one result, for its last offset.
        offsets: dict[int, int] = {}
        for requested in topic.partitions:
            offsets[requested.partition_index] = requested.offset
            yield
        for index, offset in offsets.items():
            if is_allowed:
                partitions.append(_delete(context, topic.name, index, offset, waiting))
            else:
                partitions.append(_failure(index, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            yield
        results.append(messages.DeleteRecordsTopicResult(name=topic.name, partitions=partitions))
        yield
    response = messages.RESPONSE(topics=results)
    if not waiting:
        return response
    DelayedDeleteRecords(context, request, response, waiting)
    return None


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(
        topics=[
            messages.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[_failure(partition.partition_index, code) for partition in topic.partitions],
            )
            for topic in request.body.topics
        ]
    )


def _delete(context: Context, name: str, index: int, offset: int, waiting: Waiting) -> Any:
    partition = hosted_partition(context, name, index)
    if isinstance(partition, ErrorCode):
        return _failure(index, partition)
    if is_internal_topic(name):
        return _failure(index, ErrorCode.INVALID_TOPIC_EXCEPTION)
    if not partition.log_handle.config.is_deleted:
        return _failure(index, ErrorCode.POLICY_VIOLATION)
    try:
        outcome = partition.gate.with_reserve(partition.log.delete_records_before, offset)
    except StorageFailure:
        return _failure(index, ErrorCode.KAFKA_STORAGE_ERROR)
    if outcome is None:
        return _failure(index, ErrorCode.OFFSET_OUT_OF_RANGE)
    answer = messages.DeleteRecordsPartitionResult(partition_index=index, low_watermark=outcome)
    if partition.leadership is not None and partition.leadership.low_watermark() < outcome:
        waiting.append((partition, partition.leadership, answer))
    return answer


def _failure(index: int, code: int) -> Any:
    return messages.DeleteRecordsPartitionResult(
        partition_index=index, low_watermark=INVALID_LOW_WATERMARK, error_code=code
    )


class DelayedDeleteRecords:
    """DeleteRecords request that waits for followers: the leader has deleted the records."""

    __slots__ = ("_operation",)

    def __init__(self, context: Context, request: Request, response: Any, waiting: Waiting) -> None:
        answers = [answer for _, _, answer in waiting]
        self._operation = DelayedOperation(context, request, response, answers, _time_out)
        for partition, leadership, answer in waiting:
            leadership.when_log_starts(partial(self._try_complete, partition, leadership, answer, answer.low_watermark))

    def _try_complete(self, partition: Partition, leadership: LeaderState, answer: Any, offset: int) -> bool:
        """Whether the wait is over: every live replica has deleted the records, or this broker leads no longer."""
        if not self._operation.is_pending(answer):
            return True  # expired
        low_watermark = leadership.low_watermark()
        if partition.leadership is not leadership:
            answer.error_code, answer.low_watermark = ErrorCode.NOT_LEADER_OR_FOLLOWER, INVALID_LOW_WATERMARK
        elif low_watermark < offset:
            return False
        else:
            answer.low_watermark = low_watermark
        self._operation.complete(answer)
        return True


def _time_out(answer: Any) -> None:
    answer.error_code, answer.low_watermark = ErrorCode.REQUEST_TIMED_OUT, INVALID_LOW_WATERMARK
