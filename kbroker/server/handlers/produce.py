"""Produce (0): from the receive buffer to the log, and an answer as soon as the records are committed.

The batches are staged here and written at the end of the run of frames. On one node, and whenever the leader is the
whole in-sync set, they are committed then: frame to response with no task switch. Otherwise acks=all waits, without a
task, for the high watermarks of its partitions; acks=1 for the leader's disk alone, where flush.messages=1. Hot path.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.names import INTERNAL_TOPICS
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import produce as messages
from kbroker.protocol.record_batch import MAGIC_POSITION
from kbroker.server.append_run import Staged, StagedProduce
from kbroker.server.authorization import Operation, ResourceType
from kbroker.server.hosted_partition import absence
from kbroker.server.transactional_records import admit_records

if TYPE_CHECKING:
    from kbroker.log.partition_log import AppendResult
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["ATTRIBUTES_POSITION", "NO_ACKS", "TRANSACTIONAL", "StagedRequest", "accepted", "handle", "refuse"]

NO_ACKS = 0
ALL_REPLICAS = -1
TOPIC_IDS_SINCE = 13
ADMIN_CLIENT_ID = "__admin_client"  # Kafka's tools, which alone may write to internal topics
ATTRIBUTES_POSITION = 22  # the lower byte of them
TRANSACTIONAL = 0x10

_Response = messages.RESPONSE.value
_TopicResponse = messages.TopicProduceResponse.value
_PartitionResponse = messages.PartitionProduceResponse.value
_RecordError = messages.BatchIndexAndErrorMessage.value
_new_response = messages.RESPONSE.maker()
_new_topic_response = messages.TopicProduceResponse.maker()
_new_partition_response = messages.PartitionProduceResponse.maker()


def handle(context: Context, request: Request) -> None:
    body = request.body
    acks = body.acks
    if not -1 <= acks <= 1:
        request.reply(refuse(request, ErrorCode.INVALID_REQUIRED_ACKS, None))
        return
    version = request.route.version
    by_id = version >= TOPIC_IDS_SINCE
    table = context.partitions
    run = context.append_run
    now_ms = run.now_ms()
    staged: Staged = []
    topics = []
    for topic in body.topic_data:
        name: str | None = table.topic_name(topic.topic_id) if by_id else topic.name
        refusal = None
        if name is None or name in INTERNAL_TOPICS or not context.authorizer.allows_all:
            refusal = _refusal(context, request, name)
        answers = []
        for each in topic.partition_data:
            index = each.index
            partition = None if refusal or name is None else table.get(name, index)
            if partition is None:
                code = refusal or absence(context, name or "", index)
                answers.append(_PartitionResponse(index=index, error_code=code, base_offset=-1))
                continue
            records = each.records
            if (
                records
                and len(records) > ATTRIBUTES_POSITION
                and records[ATTRIBUTES_POSITION] & TRANSACTIONAL
                and records[MAGIC_POSITION] > 1  # in older formats a part of a key or a timestamp stands there
            ):
                code = admit_records(context, request, partition, records)
                if code:
                    answers.append(_PartitionResponse(index=index, error_code=code, base_offset=-1))
                    continue
            result = partition.stage(records, version, acks, now_ms)
            if result.error:
                answers.append(_refused(index, result))
                continue
            _, base_offset, last_offset, log_append_time, log_start_offset, _, _, _ = result
            answer = _new_partition_response(
                index=index,
                base_offset=base_offset,
                log_append_time_ms=log_append_time,
                log_start_offset=log_start_offset,
            )
            answers.append(answer)
            staged.append((partition, last_offset, answer))
            run.add(partition)
        topics.append(_new_topic_response(name=topic.name, topic_id=topic.topic_id, partition_responses=answers))
    run.produces.append(StagedRequest(context, request, _new_response(responses=topics), staged))


class StagedRequest(StagedProduce):
    __slots__ = ("_context", "_response", "request", "staged")

    def __init__(self, context: Context, request: Request, response: Any, staged: Staged) -> None:
        self._context = context
        self.request = request
        self._response = response
        self.staged = staged

    def on_written(self) -> None:
        request, response = self.request, self._response
        waiting = []
        for each in self.staged:
            partition, last_offset, answer = each
            if not partition.is_committed(last_offset):
                if not partition.holds(last_offset):
                    _spoil(answer, ErrorCode.KAFKA_STORAGE_ERROR)
                elif request.body.acks == ALL_REPLICAS or partition.is_durable:
                    waiting.append(each)
        if request.body.acks == NO_ACKS:
            _end_without_answer(request, response)
        elif waiting:
            _Parked(self._context, request, response, waiting)
        else:
            request.reply(response)

    def fail(self, error: Exception) -> None:
        self.request.fail(error)


def accepted(request: Request, index: int, base_offset: int, log_append_time: int, log_start_offset: int) -> Any:
    """The answer to a request with one topic, and of it one partition."""
    (topic,) = request.body.topic_data
    answer = _new_partition_response(
        index=index, base_offset=base_offset, log_append_time_ms=log_append_time, log_start_offset=log_start_offset
    )
    return _new_response(
        responses=[_new_topic_response(name=topic.name, topic_id=topic.topic_id, partition_responses=[answer])]
    )


def refuse(request: Request, code: int, message: str | None) -> Any:
    """None where the client wants no answer: it learns of the error by losing its connection."""
    if request.body.acks == NO_ACKS:
        return None
    return _Response(
        responses=[
            _TopicResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    _PartitionResponse(index=each.index, error_code=code, base_offset=-1, error_message=message)
                    for each in topic.partition_data
                ],
            )
            for topic in request.body.topic_data
        ]
    )


def _refusal(context: Context, request: Request, name: str | None) -> ErrorCode | None:
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if name in INTERNAL_TOPICS and request.client_id != ADMIN_CLIENT_ID:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    authorizer = context.authorizer
    if authorizer.allows_all or authorizer.allows(
        request.principal, request.client_host, Operation.WRITE, ResourceType.TOPIC, name
    ):
        return None
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _refused(index: int, result: AppendResult) -> Any:
    return _PartitionResponse(
        index=index,
        error_code=result.error,
        base_offset=-1,
        log_start_offset=result.log_start_offset,
        error_message=result.error_message,
        record_errors=[
            _RecordError(batch_index=number, batch_index_error_message=reason)
            for number, reason in result.record_errors
        ],
    )


def _end_without_answer(request: Request, response: Any) -> None:
    """A client that wants no answers learns of an error by losing its connection, and then asks who leads."""
    request.reply_nothing()
    if any(answer.error_code for topic in response.responses for answer in topic.partition_responses):
        request.slot.connection.finish()


class _Parked:
    """A request whose batches are written but not committed yet."""

    __slots__ = ("_deadline", "_left", "_request", "_response", "_staged")

    def __init__(self, context: Context, request: Request, response: Any, staged: Staged) -> None:
        self._request = request
        self._response = response
        self._staged = staged
        self._left = len(staged)
        seconds = max(request.body.timeout_ms, 0) / 1000
        self._deadline = context.deadlines.add(seconds, self._on_timeout)
        request.slot.on_cancel = self._deadline.cancel
        for partition, last_offset, answer in staged:
            done = partial(self._on_committed, answer)
            if request.body.acks == ALL_REPLICAS:
                partition.wait_committed(last_offset, done)
            else:
                partition.wait_flushed(last_offset, done)

    def _on_committed(self, answer: Any, code: int) -> None:
        if self._left <= 0:
            return
        if code:
            _spoil(answer, code)
        self._left -= 1
        if self._left == 0:
            self._deadline.cancel()
            self._request.reply(self._response)

    def _on_timeout(self) -> None:
        self._left = 0
        for partition, last_offset, answer in self._staged:
            if not answer.error_code and not partition.is_committed(last_offset):
                _spoil(answer, ErrorCode.REQUEST_TIMED_OUT)
        self._request.reply(self._response)


def _spoil(answer: Any, code: int) -> None:
    answer.error_code = code
    answer.base_offset = -1
    answer.log_append_time_ms = -1
