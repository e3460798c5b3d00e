"""DeleteRecords (21), v0-2: records before an offset are no longer wanted; -1 stands for the high watermark.

Raises the log's start, at once and in order with all else; files go with the next look at retention. Answers with the
low watermark: the first offset that any replica has that is alive. Followers are waited for, without a task.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import StorageFailure
from kbroker.names import is_internal_topic
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import delete_records as messages
from kbroker.server.authorization import Operation
from kbroker.server.hosted_partition import hosted_partition
from kbroker.server.permissions import allows_topic

if TYPE_CHECKING:
    from kbroker.replication.leadership import Leadership
    from kbroker.replication.partition import Partition
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]

INVALID_LOW_WATERMARK: Final = -1

Waiting = list[tuple["Partition", "Leadership", Any]]
"""Partitions whose followers still have what was deleted, and the answers."""


def handle(context: Context, request: Request) -> Any:
    waiting: Waiting = []
    response = messages.RESPONSE(
        topics=[
            messages.DeleteRecordsTopicResult(name=topic.name, partitions=_topic(context, request, topic, waiting))
            for topic in request.body.topics
        ]
    )
    if not waiting:
        return response
    _Parked(context, request, response, waiting)
    return None


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(
        topics=[
            messages.DeleteRecordsTopicResult(
                name=topic.name, partitions=[_failure(each.partition_index, code) for each in topic.partitions]
            )
            for topic in request.body.topics
        ]
    )


def _topic(context: Context, request: Request, topic: Any, waiting: Waiting) -> list[Any]:
    if not allows_topic(context, request, Operation.DELETE, topic.name):
        return [_failure(each.partition_index, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for each in topic.partitions]
    # A partition that is named twice gets one answer, for what was said last.
    wanted = {each.partition_index: each.offset for each in topic.partitions}
    return [_delete(context, topic.name, index, offset, waiting) for index, offset in wanted.items()]


def _delete(context: Context, name: str, index: int, offset: int, waiting: Waiting) -> Any:
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


class _Parked:
    """A request whose records are deleted here, and not yet by every follower."""

    __slots__ = ("_deadline", "_left", "_request", "_response")

    def __init__(self, context: Context, request: Request, response: Any, waiting: Waiting) -> None:
        self._request = request
        self._response = response
        self._left = {id(answer): answer for _, _, answer in waiting}
        self._deadline = context.deadlines.add(max(request.body.timeout_ms, 0) / 1000, self._on_timeout)
        request.slot.on_cancel = self._deadline.cancel
        for partition, leadership, answer in waiting:
            leadership.wait_log_starts(partial(self._is_over, partition, leadership, answer, answer.low_watermark))

    def _is_over(self, partition: Partition, leadership: Leadership, answer: Any, offset: int) -> bool:
        if id(answer) not in self._left:
            return True  # its time was up
        low_watermark = leadership.low_watermark()
        if partition.leadership is not leadership:
            answer.error_code, answer.low_watermark = ErrorCode.NOT_LEADER_OR_FOLLOWER, INVALID_LOW_WATERMARK
        elif low_watermark < offset:
            return False
        else:
            answer.low_watermark = low_watermark
        del self._left[id(answer)]
        if not self._left:
            self._deadline.cancel()
            self._request.reply(self._response)
        return True

    def _on_timeout(self) -> None:
        left, self._left = self._left, {}
        for answer in left.values():
            answer.error_code, answer.low_watermark = ErrorCode.REQUEST_TIMED_OUT, INVALID_LOW_WATERMARK
        self._request.reply(self._response)
