"""Repeated Fetch requests: one partition, no fetch session, a new offset each time, records available. Hot path.

Requests for several partitions and requests within a session are recognised by `repeated_partitions_fetch`.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import StorageFailure
from kbroker.log.files.file_slice import FileSlice
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.types import unsigned_varint
from kbroker.server.access.permissions import allows_repeated
from kbroker.server.handlers import fetch
from kbroker.server.requests.fetch_session import FINAL_EPOCH
from kbroker.server.requests.repeated_partitions_fetch import FetchLayout, answer_partitions, layout_of
from kbroker.server.requests.repeated_requests import (
    HEAD_SIZE,
    KEY_POSITION,
    MAX_KEY_SIZE,
    PLACEHOLDERS,
    KnownRequest,
    RepeatedRequests,
    struct_of,
)

if TYPE_CHECKING:
    from kbroker.replication.partition import Partition
    from kbroker.server.context import Context
    from kbroker.server.requests.client_session import ClientSession
    from kbroker.server.requests.request import Request
    from kbroker.server.wire.request_slot import RequestSlot

__all__ = ["RepeatedFetches"]

_FIRST_VERSION: Final = 4  # older versions need converted records
_LOG_START_SINCE: Final = 5
_OFFSET_SIZE: Final = 8
_RECORDS: Final = b"in place of records"
_READ: Final = AclOperation.READ  # reading the member of an enum is slow

_pack_offset: Final = Struct(">q").pack
_pack_size: Final = Struct(">i").pack


class KnownFetch(KnownRequest):
    __slots__ = (
        "_config",
        "_end",
        "_leader_epoch",
        "_middle",
        "_overhead",
        "_pack",
        "_start",
        "is_committed",
        "max_bytes",
        "min_bytes",
        "tail",
    )

    def __init__(self, request: Request, head: bytes, tail: bytes, partition: Partition) -> None:
        super().__init__(request.route, head, partition)
        body, version = request.body, request.route.version
        self.tail = tail
        self.is_committed: bool = body.isolation_level == fetch.READ_COMMITTED
        self._config = partition.config
        self._leader_epoch = partition.leader_epoch
        self.max_bytes: int = min(body.max_bytes, body.topics[0].partitions[0].partition_max_bytes)
        self.min_bytes: int = body.min_bytes
        places = PLACEHOLDERS[: 3 if version >= _LOG_START_SINCE else 2]
        encoded = request.encode(fetch.plain_answer(request, *PLACEHOLDERS, _RECORDS))
        before, self._end = encoded.split(self._size_bytes(len(_RECORDS)) + _RECORDS)
        start, self._middle = before.split(b"".join(map(_pack_offset, places)))
        self._start = b"\0" + start if self.route.has_flexible_header else start  # tags of the header
        layout = struct_of(f">ii{len(self._start)}s{len(places)}q{len(self._middle)}s")
        self._pack = layout.pack
        self._overhead = layout.size - 4 + len(self._end)

    def is_current(self) -> bool:
        """Whether the checks that were made when the request was learnt still hold."""
        partition = self.partition
        return (
            not partition.is_gone and partition.config is self._config and partition.leader_epoch == self._leader_epoch
        )

    def answer(self, correlation_id: int, slice_: FileSlice) -> list[Any]:
        """Returns the parts of the response frame."""
        log, size = self.partition.opened_log, slice_.size
        assert log is not None, "a slice of a log that was never opened"
        size_bytes = self._size_bytes(size)
        total = self._overhead + len(size_bytes) + size
        start, middle = self._start, self._middle
        if self.route.version >= _LOG_START_SINCE:
            offsets = self._pack(
                total, correlation_id, start, log.high_watermark, log.last_stable_offset, log.log_start_offset, middle
            )
        else:
            offsets = self._pack(total, correlation_id, start, log.high_watermark, log.last_stable_offset, middle)
        parts = [offsets + size_bytes, slice_]
        if self._end:
            parts.append(self._end)
        return parts

    def _size_bytes(self, size: int) -> bytes:
        return unsigned_varint(size + 1) if self.route.has_flexible_header else _pack_size(size)


class RepeatedFetches(RepeatedRequests):
    __slots__ = ("_generation",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._generation = 0

    def forget(self) -> None:
        super().forget()
        self._generation += 1

    def handle(self, session: ClientSession, frame: memoryview, slot: RequestSlot) -> bool:
        known, correlation_id, offset = self._recognise(session, frame)
        if known is None:
            layout = self._layout(session)
            return layout is not None and answer_partitions(self.context, session, layout, frame, slot)
        if not (
            self.context.authorizer.allows_all
            or allows_repeated(self.context, session, slot, _READ, known.partition.topic)
        ):
            return False
        slice_ = self._read(known, offset)
        if slice_ is None:
            return False
        tally = known.route.tally
        tally.on_received()
        tally.answered_in_run += 1
        known.partition.fetched_bytes += slice_.size
        slot.complete(known.answer(correlation_id, slice_))
        return True

    def learn(self, session: ClientSession, frame: memoryview, request: Request) -> None:
        body, version = request.body, request.route.version
        if session.shapes_left <= 0 or version < _FIRST_VERSION:
            return
        replicas = self.context.preferred_replicas
        if replicas is not None and replicas.may_be_elsewhere(body.rack_id):
            return  # the handler selects a replica for each request
        if (
            body.session_id == 0
            and body.session_epoch == FINAL_EPOCH
            and len(body.topics) == 1
            and len(body.topics[0].partitions) == 1
        ):
            self._learn_one(session, frame, request)
        else:
            self._learn_layout(session, frame, request)

    def _layout(self, session: ClientSession) -> FetchLayout | None:
        layout = session.fetch_layout
        return layout if isinstance(layout, FetchLayout) and layout.generation == self._generation else None

    def _learn_layout(self, session: ClientSession, frame: memoryview, request: Request) -> None:
        layout = self._layout(session)
        if layout is not None and layout.read(frame) is not None:
            return  # the handler had to answer for another reason
        layout = layout_of(frame, request, self._generation)
        if layout is not None:
            session.fetch_layout = layout
            session.shapes_left -= 1

    def _learn_one(self, session: ClientSession, frame: memoryview, request: Request) -> None:
        body, version = request.body, request.route.version
        if len(frame) > MAX_KEY_SIZE or self._recognise(session, frame)[0] is not None:
            return
        (topic,) = body.topics
        (asked,) = topic.partitions
        table = self.context.partitions
        name = table.topic_name(topic.topic_id) if version >= fetch.TOPIC_IDS_SINCE else topic.topic
        partition = None if name is None else table.get(name, asked.partition)
        if partition is None and name is not None and version >= fetch.FOLLOWERS_SINCE:
            partition = table.follower(name, asked.partition)
        if (
            partition is None
            or asked.last_fetched_epoch >= 0
            or fetch.replica_id(request) != fetch.CONSUMER
            or fetch.refusal(request, partition, asked.current_leader_epoch)
        ):
            return
        asked.fetch_offset, offset = PLACEHOLDERS[0], asked.fetch_offset
        start, *rest = codec(request.route.api.request, version).to_bytes(body).split(_pack_offset(PLACEHOLDERS[0]))
        asked.fetch_offset = offset
        tail = rest[-1]
        key_end = len(frame) - _OFFSET_SIZE - len(tail)
        head, key = bytes(frame[:HEAD_SIZE]), bytes(frame[KEY_POSITION:key_end])
        if len(rest) != 1 or not key.endswith(start) or bytes(frame[key_end:]) != _pack_offset(offset) + tail:
            return  # valid, but encoded in another way than usual
        self.remember(key, KnownFetch(request, head, tail, partition))
        shape = struct_of(f">{HEAD_SIZE}si{len(key)}sq{len(tail)}s")
        if session.fetch_shape is not shape:
            session.fetch_shape = shape
            session.shapes_left -= 1

    def _recognise(self, session: ClientSession, frame: memoryview) -> tuple[KnownFetch | None, int, int]:
        """Returns the known request, its correlation id and its fetch offset; None, 0, 0 if it is not recognised."""
        shape = session.fetch_shape
        if shape is None or len(frame) != shape.size:
            return None, 0, 0
        head, correlation_id, key, offset, tail = shape.unpack(frame)
        known = self.known.get(key)
        if not isinstance(known, KnownFetch) or known.head != head or known.tail != tail or not known.is_current():
            return None, 0, 0
        return known, correlation_id, offset

    def _read(self, known: KnownFetch, offset: int) -> FileSlice | None:
        """Returns the records; None if the handler must answer with an error, wait, or list aborted transactions."""
        partition = known.partition
        log = partition.opened_log
        if log is None:
            return None
        bound = log.high_watermark
        if known.is_committed and bound != log.last_stable_offset:
            return None
        max_bytes = min(known.max_bytes, self.context.config.fetch_max_bytes)
        try:
            slice_ = partition.read(offset, max_bytes, bound, is_first=True)
        except StorageFailure:
            return None
        if not isinstance(slice_, FileSlice):
            return None
        if slice_.size < known.min_bytes or (known.is_committed and log.aborted_transactions(offset, bound, slice_)):
            slice_.release()
            return None
        return slice_
