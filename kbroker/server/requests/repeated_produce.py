"""Repeated Produce requests: one partition, new records each time. Hot path.

Recognised if the partition commits when it writes, or waits for followers only: with acks=all the response then waits
for the high watermark, at most for the timeout of the request.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final, cast

from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.compiler.runtime import varint
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import produce as messages
from kbroker.protocol.record_batch import ATTRIBUTE_TRANSACTIONAL, ATTRIBUTES_LOW_BYTE_POSITION, HEADER_SIZE
from kbroker.protocol.types import unsigned_varint
from kbroker.server.access.permissions import allows_repeated
from kbroker.server.handlers import produce
from kbroker.server.requests.repeated_requests import (
    HEAD_SIZE,
    KEY_POSITION,
    MAX_KEY_SIZE,
    PLACEHOLDERS,
    KnownRequest,
    RepeatedRequests,
    struct_of,
)
from kbroker.server.requests.request import Request, read_request
from kbroker.server.requests.run import StagedProduce

if TYPE_CHECKING:
    from kbroker.log.append_result import AppendResult
    from kbroker.replication.partition import Partition
    from kbroker.server.context import Context
    from kbroker.server.requests.client_session import ClientSession
    from kbroker.server.wire.request_slot import RequestSlot

__all__ = ["RepeatedProduces"]

_FIRST_VERSION: Final = 7  # from here on a response has all three offsets, and every codec is allowed
_RECORDS_LENGTH_SIZE: Final = 4  # int32 before the records, in versions that are not flexible
_EMPTY_TAGS: Final = b"\0\0\0"  # of partition, topic and request: after the records in flexible versions
_WRITE: Final = AclOperation.WRITE  # reading the member of an enum is slow

_unpack_size: Final = Struct(">i").unpack_from
_pack_offsets: Final = Struct(">qqq").pack


class KnownProduce(KnownRequest):
    __slots__ = ("_body", "_client_id", "_end", "_pack", "_records_at", "_size", "_start", "acks", "timeout_seconds")

    def __init__(self, request: Request, head: bytes, records_at: int, partition: Partition) -> None:
        super().__init__(request.route, head, partition)
        self.acks: int = request.body.acks
        self.timeout_seconds: float = max(request.body.timeout_ms, 0) / 1000
        self._client_id = request.client_id
        self._body = _without_records(request.body)
        self._records_at = records_at
        response = produce.accepted(request, partition.index, *PLACEHOLDERS)
        start, end = request.encode(response).split(_pack_offsets(*PLACEHOLDERS))
        if self.route.has_flexible_header:
            start = b"\0" + start  # tags of the header
        layout = struct_of(f">ii{len(start)}sqqq{len(end)}s")
        self._start, self._end, self._size, self._pack = start, end, layout.size - 4, layout.pack

    def find_records(self, frame: memoryview) -> memoryview | None:
        """Returns the records of the frame; None if the frame is not exactly the known bytes and one batch."""
        at, end = self._records_at, len(frame)
        if end - at <= HEADER_SIZE:
            return None
        if self.route.has_flexible_header:
            size, at = varint(frame, at)
            size -= 1
            end -= len(_EMPTY_TAGS)
            if bytes(frame[end:]) != _EMPTY_TAGS:
                return None
        else:
            (size,) = _unpack_size(frame, at)
            at += _RECORDS_LENGTH_SIZE
        return frame[at:end] if HEADER_SIZE <= size == end - at else None

    def answer(self, correlation_id: int, result: AppendResult) -> bytes:
        _, base_offset, _, log_append_time, log_start_offset, _, _, _ = result
        answer: bytes = self._pack(
            self._size, correlation_id, self._start, base_offset, log_append_time, log_start_offset, self._end
        )
        return answer

    def refuse(self, correlation_id: int, slot: RequestSlot, began: float, code: int, *, log_start_offset: int) -> None:
        """Answers a request whose records were written, and not committed."""
        request = Request(self.route, correlation_id, self._client_id, self._body, slot)
        request.began = began
        request.reply(produce.not_committed(request, self.partition.index, code, log_start_offset=log_start_offset))


class _Staged(StagedProduce):
    __slots__ = ("_context", "_correlation_id", "_frame", "_known", "_result", "_slot")

    def __init__(
        self,
        context: Context,
        known: KnownProduce,
        frame: memoryview,
        slot: RequestSlot,
        correlation_id: int,
        result: AppendResult,
    ) -> None:
        self._context = context
        self._known = known
        self._frame = frame
        self._slot = slot
        self._correlation_id = correlation_id
        self._result = result

    def on_written(self) -> None:
        known, result = self._known, self._result
        if known.partition.is_committed(result[2]):
            self._slot.complete((known.answer(self._correlation_id, result),))
            known.route.tally.answered_in_run += 1
            return
        if known.partition.holds(result[2]) and not known.partition.is_durable:
            if known.acks == produce.ALL_REPLICAS:
                _Waiting(self._context, known, self._slot, self._correlation_id, result)
            else:
                self._slot.complete((known.answer(self._correlation_id, result),))
                known.route.tally.answered_in_run += 1
            return
        request = self._request()
        _, base_offset, last_offset, log_append_time, log_start_offset, _, _, _ = result
        response = produce.accepted(request, known.partition.index, base_offset, log_append_time, log_start_offset)
        staged = (known.partition, last_offset, response.responses[0].partition_responses[0])
        produce.StagedRequest(self._context, request, response, [staged]).on_written()

    def fail(self, error: Exception) -> None:
        self._request().fail(error)

    def _request(self) -> Request:
        return read_request(self._known.route, self._frame, self._slot)


class _Waiting:
    """Response of a request whose records are written, until they are committed or its timeout is over."""

    __slots__ = ("_began", "_correlation_id", "_deadline", "_is_answered", "_known", "_result", "_slot")

    def __init__(
        self, context: Context, known: KnownProduce, slot: RequestSlot, correlation_id: int, result: AppendResult
    ) -> None:
        self._known = known
        self._slot = slot
        self._correlation_id = correlation_id
        self._result = result
        self._began: float = context.run.began
        self._is_answered = False
        self._deadline = context.deadlines.add(known.timeout_seconds, self._expire)
        slot.on_cancel = self._deadline.cancel
        known.partition.when_committed(result[2], self._on_committed)

    def _on_committed(self, code: int) -> None:
        if self._is_answered:
            return  # expired
        self._deadline.cancel()
        self._is_answered = True
        known = self._known
        if code:
            log_start_offset = self._result[4]
            known.refuse(self._correlation_id, self._slot, self._began, code, log_start_offset=log_start_offset)
        else:
            self._slot.complete((known.answer(self._correlation_id, self._result),))
            known.route.tally.on_answered(self._began)

    def _expire(self) -> None:
        self._on_committed(ErrorCode.REQUEST_TIMED_OUT)


class RepeatedProduces(RepeatedRequests):
    __slots__ = ("_run",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._run = context.run

    def handle(self, session: ClientSession, frame: memoryview, slot: RequestSlot) -> bool:
        shape = session.produce_shape
        if shape is None or len(frame) < shape.size:
            return False
        head, correlation_id, key = shape.unpack_from(frame)
        found = self.known.get(key)
        if found is None or found.head != head:
            return False
        known = cast(KnownProduce, found)
        partition = known.partition
        records = known.find_records(frame)
        if (
            records is None
            or records[ATTRIBUTES_LOW_BYTE_POSITION] & ATTRIBUTE_TRANSACTIONAL
            or not (partition.commits_at_once or (partition.leadership is not None and not partition.is_durable))
            or not (
                self.context.authorizer.allows_all
                or allows_repeated(self.context, session, slot, _WRITE, partition.topic)
            )
        ):
            return False
        run = self._run
        route = known.route
        result = partition.stage(records, route.version, known.acks, run.now_ms())
        if result.error:
            return False
        route.tally.on_received()
        run.add_partition(partition)
        run.produces.append(_Staged(self.context, known, frame, slot, correlation_id, result))
        return True

    def learn(self, session: ClientSession, frame: memoryview, request: Request) -> None:
        body, route = request.body, request.route
        staged = self._run.produces[-1] if self._run.produces else None
        if (
            session.shapes_left <= 0
            or route.version < _FIRST_VERSION
            or body.acks == produce.NO_ACKS
            or body.transactional_id is not None
            or len(body.topic_data) != 1
            or len(body.topic_data[0].partition_data) != 1
            or not isinstance(staged, produce.StagedRequest)
            or staged.request is not request
            or not staged.staged
        ):
            return
        size = len(body.topic_data[0].partition_data[0].records)
        if route.has_flexible_header:
            records_at = len(frame) - len(_EMPTY_TAGS) - size - len(unsigned_varint(size + 1))
        else:
            records_at = len(frame) - size - _RECORDS_LENGTH_SIZE
        if records_at > MAX_KEY_SIZE:
            return
        head, key = bytes(frame[:HEAD_SIZE]), bytes(frame[KEY_POSITION:records_at])
        known = self.known.get(key)
        partition = staged.staged[0][0]
        if known is None or known.head != head or known.partition is not partition:
            new = KnownProduce(request, head, records_at, partition)
            if new.find_records(frame) is None:
                return  # valid, but encoded in another way than usual
            self.remember(key, new)
        shape = struct_of(f">{HEAD_SIZE}si{len(key)}s")
        if session.produce_shape is not shape:
            session.produce_shape = shape
            session.shapes_left -= 1


def _without_records(body: Any) -> Any:
    """Returns the body of a request for one partition without its records, which are in the receive buffer."""
    (topic,) = body.topic_data
    data = messages.PartitionProduceData(index=topic.partition_data[0].index)
    asked = messages.TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=[data])
    return messages.REQUEST(acks=body.acks, timeout_ms=body.timeout_ms, topic_data=[asked])
