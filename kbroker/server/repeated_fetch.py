"""Fetch of one partition without a session, from another offset each time, where something is to be read. Hot path."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import StorageFailure
from kbroker.log.file_slice import FileSlice
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.types import unsigned_varint
from kbroker.server.fetch_session import FINAL_EPOCH
from kbroker.server.handlers import fetch
from kbroker.server.repeated_requests import (
    HEAD_SIZE,
    KEY_POSITION,
    LONGEST_KEY,
    PLACES,
    KnownRequest,
    RepeatedRequests,
    struct_of,
)

if TYPE_CHECKING:
    from kbroker.replication.partition import Partition
    from kbroker.server.connection import Connection
    from kbroker.server.request import Request
    from kbroker.server.request_slot import RequestSlot

__all__ = ["RepeatedFetches"]

_FIRST_VERSION: Final = 4  # before it records are converted
_LOG_START_SINCE: Final = 5
_OFFSET_SIZE: Final = 8
_RECORDS: Final = b"in place of records"

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
        places = PLACES[: 3 if version >= _LOG_START_SINCE else 2]
        encoded = request.encode(fetch.plain_answer(request, *PLACES, _RECORDS))
        before, self._end = encoded.split(self._size_bytes(len(_RECORDS)) + _RECORDS)
        start, self._middle = before.split(b"".join(map(_pack_offset, places)))
        self._start = b"\0" + start if self.route.has_flexible_header else start  # the tags of the header
        layout = struct_of(f">ii{len(self._start)}s{len(places)}q{len(self._middle)}s")
        self._pack = layout.pack
        self._overhead = layout.size - 4 + len(self._end)

    def is_current(self) -> bool:
        """Whether what was checked when it was learnt still holds."""
        partition = self.partition
        return (
            not partition.is_gone and partition.config is self._config and partition.leader_epoch == self._leader_epoch
        )

    def answer(self, correlation_id: int, slice_: FileSlice) -> list[Any]:
        """All parts of the frame."""
        log, size = self.partition.log, slice_.size
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
    __slots__ = ()

    def handle(self, connection: Connection, frame: memoryview, slot: RequestSlot) -> bool:
        known, correlation_id, offset = self._recognise(connection, frame)
        if known is None or not self.context.authorizer.allows_all:
            return False
        if self.context.append_run.produces:
            self.context.append_run.end()
        slice_ = self._read(known, offset)
        if slice_ is None:
            return False
        known.route.tally[0] += 1
        known.partition.fetched_bytes += slice_.size
        slot.complete(known.answer(correlation_id, slice_))
        return True

    def learn(self, connection: Connection, frame: memoryview, request: Request) -> None:
        body, version = request.body, request.route.version
        if (
            version < _FIRST_VERSION
            or len(frame) > LONGEST_KEY
            or body.session_id
            or body.session_epoch != FINAL_EPOCH
            or len(body.topics) != 1
            or len(body.topics[0].partitions) != 1
            or self._recognise(connection, frame)[0] is not None
        ):
            return
        (topic,) = body.topics
        (asked,) = topic.partitions
        table = self.context.partitions
        name = table.topic_name(topic.topic_id) if version >= fetch.TOPIC_IDS_SINCE else topic.topic
        partition = None if name is None else table.get(name, asked.partition)
        if (
            partition is None
            or asked.last_fetched_epoch >= 0
            or fetch.replica_id(request) != fetch.CONSUMER
            or fetch.refusal(request, partition, asked.current_leader_epoch)
        ):
            return
        asked.fetch_offset, offset = PLACES[0], asked.fetch_offset
        start, *rest = codec(request.route.api.request, version).to_bytes(body).split(_pack_offset(PLACES[0]))
        asked.fetch_offset = offset
        tail = rest[-1]
        key_end = len(frame) - _OFFSET_SIZE - len(tail)
        head, key = bytes(frame[:HEAD_SIZE]), bytes(frame[KEY_POSITION:key_end])
        if len(rest) != 1 or not key.endswith(start) or bytes(frame[key_end:]) != _pack_offset(offset) + tail:
            return  # it was right, but not as clients write it
        self.remember(key, KnownFetch(request, head, tail, partition))
        self.expect(connection, struct_of(f">{HEAD_SIZE}si{len(key)}sq{len(tail)}s"))

    def _recognise(self, connection: Connection, frame: memoryview) -> tuple[KnownFetch | None, int, int]:
        """With its correlation id and its offset."""
        shape = connection.shape
        if shape is None or connection.repeated is not self or len(frame) != shape.size:
            return None, 0, 0
        head, correlation_id, key, offset, tail = shape.unpack(frame)
        known = self.known.get(key)
        if not isinstance(known, KnownFetch) or known.head != head or known.tail != tail or not known.is_current():
            return None, 0, 0
        return known, correlation_id, offset

    def _read(self, known: KnownFetch, offset: int) -> FileSlice | None:
        """None where the ordinary way has to find the error, or to wait."""
        partition = known.partition
        log, bound = partition.log, partition.high_watermark
        if known.is_committed and bound != log.last_stable_offset:
            return None
        room = min(known.max_bytes, self.context.config.fetch_max_bytes)
        try:
            slice_ = partition.read(offset, room, bound, is_first=True)
        except StorageFailure:
            return None
        if not isinstance(slice_, FileSlice):
            return None
        if slice_.size < known.min_bytes or (known.is_committed and log.aborted_transactions(offset, bound, slice_)):
            slice_.release()
            return None
        return slice_
