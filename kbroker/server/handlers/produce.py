"""Produce (0), v0-13: appends batches to the logs, and responds once they are committed. Hot path.

Batches are views into the receive buffer: they are staged here and written at the end of the run. If this broker is the
whole ISR, they are committed by then, and the response leaves without a task switch. Otherwise acks=all waits for the
high watermarks of its partitions, and acks=1 with flush.messages=1 for the leader's fsync; neither needs a task.
Batches that take long to check are checked in a thread, those of very many partitions are staged in slices. The
connection is held meanwhile.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kbroker.log.append_result import CHECK_IN_THREAD, AppendResult, refused
from kbroker.log.append_rules import LONG_CHECK, CheckedBatch, Rejection
from kbroker.names import INTERNAL_TOPICS
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import produce as messages
from kbroker.protocol.record_batch import ATTRIBUTE_TRANSACTIONAL, ATTRIBUTES_LOW_BYTE_POSITION, MAGIC_POSITION
from kbroker.replication.partition import Partition
from kbroker.replication.produced_records import long_check, short_check
from kbroker.server.access.permissions import allows_topic, allows_transactional_id
from kbroker.server.coordinators.transactional_records import Verification, admit_records, known_admission_error
from kbroker.server.requests.delayed_operation import DelayedOperation
from kbroker.server.requests.run import StagedBatches, StagedProduce
from kbroker.server.topics.hosted_partition import absence
from kbroker.time_slice import TimeSlice

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = [
    "ALL_REPLICAS",
    "MANY_PARTITIONS",
    "NO_ACKS",
    "StagedRequest",
    "accepted",
    "handle",
    "not_committed",
    "refuse",
]

NO_ACKS: Final = 0
ALL_REPLICAS: Final = -1
TOPIC_IDS_SINCE: Final = 13
MANY_PARTITIONS: Final = 200  # in one request: they are staged in slices
ADMIN_CLIENT_ID: Final = "__admin_client"  # Kafka's tools send it; only they may write to internal topics

_Response = messages.RESPONSE.value
_TopicResponse = messages.TopicProduceResponse.value
_PartitionResponse = messages.PartitionProduceResponse.value
_RecordError = messages.BatchIndexAndErrorMessage.value
_new_response: Final = messages.RESPONSE.maker()
_new_topic_response: Final = messages.TopicProduceResponse.maker()
_new_partition_response: Final = messages.PartitionProduceResponse.maker()


def handle(context: Context, request: Request) -> None:
    body = request.body
    acks = body.acks
    if not -1 <= acks <= 1:
        request.reply(refuse(request, ErrorCode.INVALID_REQUIRED_ACKS, None))
        return
    if not context.authorizer.allows_all and not _may_use_transaction(context, request):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        run = context.run
        run.produces.append(StagedRequest(context, request, refuse(request, code, None), []))
        return
    by_id = request.route.version >= TOPIC_IDS_SINCE
    run = context.run
    now_ms = run.now_ms()
    partition_count = 0
    for topic in body.topic_data:
        partition_count += len(topic.partition_data)
    if partition_count > MANY_PARTITIONS or len(body.topic_data) > MANY_PARTITIONS:
        request.slot.connection.hold()
        context.nursery.start_soon(_stage_in_slices, context, request, now_ms)
        return
    staged: StagedBatches = []
    unchecked: list[_UncheckedBatch] = []
    topics = []
    for topic in body.topic_data:
        name: str | None = context.partitions.topic_name(topic.topic_id) if by_id else topic.name
        error = None
        if name is None or name in INTERNAL_TOPICS or not context.authorizer.allows_all:
            error = _topic_error(context, request, name)
        answers: list[Any] = []
        for data in topic.partition_data:
            _stage(context, request, name, error, data, now_ms, answers, staged, unchecked)
        topics.append(_new_topic_response(name=topic.name, topic_id=topic.topic_id, partition_responses=answers))
    response = _new_response(responses=topics)
    if unchecked:
        # Before the other frames of this connection are handled.
        request.slot.connection.hold()
        # Not returned to dispatch, which does not know the coroutines of compiled code.
        context.nursery.start_soon(_check_and_stage, context, request, response, staged, unchecked, now_ms)
        return
    run.produces.append(StagedRequest(context, request, response, staged))


def _stage(
    context: Context,
    request: Request,
    name: str | None,
    error: ErrorCode | None,
    data: Any,
    now_ms: int,
    answers: list[Any],
    staged: StagedBatches,
    unchecked: list[_UncheckedBatch],
) -> None:
    """Stages the batch of one partition and appends its answer. `error` refuses all partitions of the topic."""
    index = data.index
    partition = None if error or name is None else context.partitions.get(name, index)
    if partition is None:
        code = error or absence(context, name or "", index)
        replica = None if error or name is None else context.partitions.replica(name, index)
        if replica is not None:
            # This broker may become the leader before the client's next request arrives.
            replica.refuse(data.records, AppendResult(code), now_ms)
        answers.append(_PartitionResponse(index=index, error_code=code, base_offset=-1))
        return
    records = data.records
    if records and _is_transactional(records):
        admission = admit_records(context, request, partition, records)
        if isinstance(admission, Verification):
            answers.append(_PartitionResponse(index=index, base_offset=-1))
            unchecked.append(_UncheckedBatch(partition, records, answers, len(answers) - 1, admission))
            return
        if admission:
            answers.append(_append_error(index, _not_admitted(partition, records, admission, now_ms)))
            return
    result = partition.stage(records, request.route.version, request.body.acks, now_ms)
    if result.error:
        answers.append(_append_error(index, result))
        if result is CHECK_IN_THREAD:
            unchecked.append(_UncheckedBatch(partition, records, answers, len(answers) - 1))
        return
    _, base_offset, last_offset, log_append_time, log_start_offset, _, _, _ = result
    answer = _new_partition_response(
        index=index, base_offset=base_offset, log_append_time_ms=log_append_time, log_start_offset=log_start_offset
    )
    answers.append(answer)
    staged.append((partition, last_offset, answer))
    context.run.add_partition(partition)


async def _stage_in_slices(context: Context, request: Request, now_ms: int) -> None:
    """Handles a request with very many partitions. The batches of a slice are written at its end.

    Only batches that are written and not committed yet are kept until all are staged.
    """
    uncommitted: StagedBatches = []
    unchecked: list[_UncheckedBatch] = []
    topics = []
    time_slice = TimeSlice(context.clock)
    try:
        staged: StagedBatches = []
        epochs: list[int] = []
        by_id = request.route.version >= TOPIC_IDS_SINCE
        for topic in request.body.topic_data:
            answers: list[Any] = []
            for data in topic.partition_data:
                # Looked up for each batch: a slice before it may have been long ago.
                name: str | None = context.partitions.topic_name(topic.topic_id) if by_id else topic.name
                error = None
                if name is None or name in INTERNAL_TOPICS or not context.authorizer.allows_all:
                    error = _topic_error(context, request, name)
                _stage(context, request, name, error, data, now_ms, answers, staged, unchecked)
                if time_slice.is_over():
                    _write_slice(context, request, staged, uncommitted, epochs)
                    await time_slice.checkpoint_if_over()
            topics.append(_new_topic_response(name=topic.name, topic_id=topic.topic_id, partition_responses=answers))
            if time_slice.is_over():
                _write_slice(context, request, staged, uncommitted, epochs)
                await time_slice.checkpoint_if_over()
        _write_slice(context, request, staged, uncommitted, epochs)
        uncommitted = _still_led(uncommitted, epochs)
    except Exception as failure:
        context.run.write()  # before the receive buffer is released
        request.fail(failure)
        request.slot.connection.release()
        return
    await _check_and_stage(context, request, _new_response(responses=topics), uncommitted, unchecked, now_ms)


def _write_slice(
    context: Context, request: Request, staged: StagedBatches, uncommitted: StagedBatches, epochs: list[int]
) -> None:
    """Writes staged batches. No batch may be staged while other tasks run: they may change a partition's role."""
    context.run.write()
    for batch in _uncommitted(request, staged):
        uncommitted.append(batch)
        epochs.append(batch[0].leader_epoch)
    staged.clear()


def _uncommitted(request: Request, staged: StagedBatches) -> StagedBatches:
    """Returns the written batches that the response has to wait for. Sets the error of those that are not written."""
    waiting = []
    for batch in staged:
        partition, last_offset, answer = batch
        if not partition.is_committed(last_offset):
            if not partition.holds(last_offset):
                _set_error(answer, ErrorCode.KAFKA_STORAGE_ERROR)
                answer.error_message = partition.gate.refusal.error_message
            elif request.body.acks == ALL_REPLICAS or partition.is_durable:
                waiting.append(batch)
    return waiting


def _still_led(staged: StagedBatches, epochs: list[int]) -> StagedBatches:
    """Returns the batches whose partitions are still led in the epochs in which they were written."""
    for epoch, (partition, _, answer) in zip(epochs, staged, strict=True):
        if not partition.is_leader or partition.leader_epoch != epoch:
            # Another leader may have other records at these offsets.
            _set_error(answer, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return [batch for batch in staged if not batch[2].error_code]


class _UncheckedBatch:
    """Batch whose check takes long, or waits for a transaction coordinator. `answers[number]` is its response."""

    __slots__ = ("answers", "number", "partition", "records", "verification")

    def __init__(
        self,
        partition: Partition,
        records: memoryview,
        answers: list[Any],
        number: int,
        verification: Verification | None = None,
    ) -> None:
        self.partition = partition
        self.records = records
        self.answers = answers
        self.number = number
        self.verification = verification


async def _check_and_stage(
    context: Context,
    request: Request,
    response: Any,
    staged: StagedBatches,
    unchecked: list[_UncheckedBatch],
    now_ms: int,
) -> None:
    """Checks batches in threads and waits for transaction coordinators, then stages all of them in one turn.

    The end of the run has written the other batches of the request.
    """
    epochs = [partition.leader_epoch for partition, _, _ in staged]
    try:
        checks = []
        for batch in unchecked:
            checks.append(await _check(context, request, batch, now_ms))
            if batch.verification is not None:
                await batch.verification.wait()
        staged = _still_led(staged, epochs)
        for batch, checked in zip(unchecked, checks, strict=True):
            result = _stage_checked(context, request, batch, checked, now_ms)
            partition, index = batch.partition, batch.partition.index
            if result.error:
                batch.answers[batch.number] = _append_error(index, result)
                continue
            answer = batch.answers[batch.number] = _new_partition_response(
                index=index,
                base_offset=result.base_offset,
                log_append_time_ms=result.log_append_time,
                log_start_offset=result.log_start_offset,
            )
            staged.append((partition, result.last_offset, answer))
            context.run.add_partition(partition)
        context.run.produces.append(StagedRequest(context, request, response, staged))
        context.run.write()  # before the receive buffer is released
    except Exception as error:
        request.fail(error)
    finally:
        request.slot.connection.release()


async def _check(context: Context, request: Request, batch: _UncheckedBatch, now_ms: int) -> CheckedBatch | Rejection:
    partition, records = batch.partition, batch.records
    if batch.verification is not None:
        checked = short_check(partition.log, records, request.version, now_ms)
        if checked is not LONG_CHECK:
            return checked
    return await context.thread_work.run(long_check(partition.log, records, request.version, now_ms))


def _stage_checked(
    context: Context, request: Request, batch: _UncheckedBatch, checked: CheckedBatch | Rejection, now_ms: int
) -> AppendResult:
    """Stages a batch after its check. Everything but the batch is looked up again: the check took its time."""
    partition = batch.partition
    found = context.partitions.get(partition.topic, partition.index)
    if found is not partition:
        is_replaced = found is not None
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return AppendResult(code if is_replaced else absence(context, partition.topic, partition.index))
    if isinstance(checked, Rejection):
        if checked.code == ErrorCode.MESSAGE_TOO_LARGE:
            partition.rejected_bytes += len(batch.records)
        return refused(checked)
    if _is_transactional(batch.records):
        # The transaction may have ended meanwhile. Records behind its marker would never be committed or aborted.
        code = _admit_again(context, request, batch)
        if code:
            return _not_admitted(partition, batch.records, code, now_ms)
    return partition.stage(batch.records, request.version, request.body.acks, now_ms, checked)


def _admit_again(context: Context, request: Request, batch: _UncheckedBatch) -> ErrorCode:
    if batch.verification is not None:
        return known_admission_error(batch.verification.verdict(), request)
    admission = admit_records(context, request, batch.partition, batch.records)
    return ErrorCode.NOT_ENOUGH_REPLICAS if isinstance(admission, Verification) else admission


def _not_admitted(partition: Partition, records: memoryview, code: ErrorCode, now_ms: int) -> AppendResult:
    """Returns the result for records that no open transaction has. If the client retries, later records must wait."""
    result = AppendResult(code)
    return partition.refuse(records, result, now_ms) if code == ErrorCode.NOT_ENOUGH_REPLICAS else result


def _is_transactional(records: memoryview) -> bool:
    return (
        len(records) > ATTRIBUTES_LOW_BYTE_POSITION
        and records[ATTRIBUTES_LOW_BYTE_POSITION] & ATTRIBUTE_TRANSACTIONAL != 0
        and records[MAGIC_POSITION] > 1  # older formats have a part of a key or a timestamp at this position
    )


class StagedRequest(StagedProduce):
    """Decoded Produce request. `staged` holds only the partitions that have accepted their batch."""

    __slots__ = ("_context", "_response", "request", "staged")

    def __init__(self, context: Context, request: Request, response: Any, staged: StagedBatches) -> None:
        self._context = context
        self.request = request
        self._response = response
        self.staged = staged

    def on_written(self) -> None:
        request, response = self.request, self._response
        waiting = _uncommitted(request, self.staged)
        if request.body.acks == NO_ACKS:
            _complete_without_response(request, response)
        elif waiting:
            DelayedProduce(self._context, request, response, waiting)
        else:
            request.reply(response)

    def fail(self, error: Exception) -> None:
        self.request.fail(error)


def accepted(request: Request, index: int, base_offset: int, log_append_time: int, log_start_offset: int) -> Any:
    """Returns the successful response to a request with one partition of one topic."""
    (topic,) = request.body.topic_data
    answer = _new_partition_response(
        index=index, base_offset=base_offset, log_append_time_ms=log_append_time, log_start_offset=log_start_offset
    )
    return _new_response(
        responses=[_new_topic_response(name=topic.name, topic_id=topic.topic_id, partition_responses=[answer])]
    )


def not_committed(request: Request, index: int, code: int, *, log_start_offset: int) -> Any:
    """Returns the response to a request with one partition, whose records were written and not committed."""
    response = accepted(request, index, -1, -1, log_start_offset)
    _set_error(response.responses[0].partition_responses[0], code)
    return response


def refuse(request: Request, code: int, message: str | None) -> Any:
    """Returns the error response; None for acks=0: the client learns of the error because its connection is closed."""
    if request.body.acks == NO_ACKS:
        return None
    return _Response(
        responses=[
            _TopicResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    _PartitionResponse(index=data.index, error_code=code, base_offset=-1, error_message=message)
                    for data in topic.partition_data
                ],
            )
            for topic in request.body.topic_data
        ]
    )


def _may_use_transaction(context: Context, request: Request) -> bool:
    """Whether the request has no transactional batch, or the client may write with its transactional id."""
    body = request.body
    if not any(
        data.records and _is_transactional(data.records) for topic in body.topic_data for data in topic.partition_data
    ):
        return True
    return body.transactional_id is not None and allows_transactional_id(
        context, request, AclOperation.WRITE, body.transactional_id
    )


def _topic_error(context: Context, request: Request, name: str | None) -> ErrorCode | None:
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not allows_topic(context, request, AclOperation.WRITE, name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if name in INTERNAL_TOPICS and request.client_id != ADMIN_CLIENT_ID:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return None


def _append_error(index: int, result: AppendResult) -> Any:
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


def _complete_without_response(request: Request, response: Any) -> None:
    """Closes the connection after an error, as Kafka does for acks=0: the client then refreshes its metadata."""
    request.reply_nothing()
    request.route.count_errors(response, request.tally.times.errors)
    if any(answer.error_code for topic in response.responses for answer in topic.partition_responses):
        request.slot.connection.finish()


class DelayedProduce:
    """Produce request whose batches are written and not committed yet."""

    __slots__ = ("_operation",)

    def __init__(self, context: Context, request: Request, response: Any, staged: StagedBatches) -> None:
        answers = [answer for _, _, answer in staged]
        self._operation = DelayedOperation(context, request, response, answers, _time_out)
        for partition, last_offset, answer in staged:
            done = partial(self._on_committed, answer)
            if request.body.acks == ALL_REPLICAS:
                partition.when_committed(last_offset, done)
            else:
                partition.when_flushed(last_offset, done)

    def _on_committed(self, answer: Any, code: int) -> None:
        operation = self._operation
        if not operation.is_pending(answer):
            return  # expired
        if code:
            _set_error(answer, code)
        operation.complete(answer)


def _time_out(answer: Any) -> None:
    _set_error(answer, ErrorCode.REQUEST_TIMED_OUT)


def _set_error(answer: Any, code: int) -> None:
    answer.error_code = code
    answer.base_offset = -1
    answer.log_append_time_ms = -1
