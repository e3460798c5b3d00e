"""Repeated Fetch requests of any number of partitions of one topic: within a fetch session, or all of them each time.

The requests of a consumer differ in the partitions that they name, in their offsets, and in the session's epoch. The
bytes around these (client id, limits, rack) stay the same: they are the layout, which the connection keeps. Topics are
named by their id (v13 and later). The partitions of a request have a fixed size:

    layout  session id, epoch   1 + topics   topic id   1 + partitions   33 bytes for each partition   no tags   layout

A request is answered here if it adds and forgets no partition of its session, if there are records, and if nothing is
an error. Hot path.
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
from kbroker.server.requests.fetch_session import FINAL_EPOCH, FetchSession, FetchTarget
from kbroker.server.requests.repeated_requests import HEAD_SIZE, KEY_POSITION, MAX_KEY_SIZE, PLACEHOLDERS, struct_of

if TYPE_CHECKING:
    from kbroker.replication.partition import Partition
    from kbroker.server.context import Context
    from kbroker.server.requests.client_session import ClientSession
    from kbroker.server.requests.request import Request
    from kbroker.server.wire.request_slot import RequestSlot

__all__ = ["AskedPartitions", "FetchLayout", "answer_partitions", "layout_of"]

_FIRST_VERSION: Final = fetch.TOPIC_IDS_SINCE
_MAX_PARTITIONS: Final = 126  # their number is a varint of one byte
_ID_SIZE: Final = 16
_NO_TOPIC: Final = 1  # a compact array's number of elements is stored plus 1
_ONE_TOPIC: Final = 2
_NO_TAGS: Final = b"\0"
_RECORDS: Final = b"in place of records"
_READ: Final = AclOperation.READ  # reading the member of an enum is slow
_INT_PLACEHOLDERS: Final = (0x5E70FF51, 0x5E70FF52)

_pack_int: Final = Struct(">i").pack
_pack_offsets: Final = Struct(">qqq").pack
# Index, current leader epoch, fetch offset, last fetched epoch, log start offset, max bytes, number of tags.
_PARTITION: Final = Struct(">iiqiqiB")

AskedPartitions = list[tuple[int, int, int, int, int, int, int]]


class FetchLayout:
    """Bytes that the requests of one connection have in common, their meaning, and the bytes of the responses."""

    __slots__ = (
        "_entry",
        "_entry_end",
        "_entry_middle",
        "_entry_start",
        "_no_records",
        "_prefix",
        "_shape",
        "_start",
        "_tail",
        "generation",
        "head",
        "is_committed",
        "max_bytes",
        "min_bytes",
        "route",
    )

    def __init__(self, request: Request, head: bytes, prefix: bytes, tail: bytes, generation: int) -> None:
        body = request.body
        self.route = request.route
        self.generation = generation  # of the known requests: they are forgotten all together
        self.head = head
        self._prefix = prefix
        self._tail = tail
        self._shape = struct_of(f">{HEAD_SIZE}si{len(prefix)}sii")
        self.min_bytes: int = body.min_bytes
        self.max_bytes: int = body.max_bytes
        self.is_committed: bool = body.isolation_level == fetch.READ_COMMITTED
        session_id, index = _INT_PLACEHOLDERS
        topic_id = bytes(_ID_SIZE)
        offsets = _pack_offsets(*PLACEHOLDERS)
        members = dict(
            zip(("high_watermark", "last_stable_offset", "log_start_offset"), PLACEHOLDERS, strict=True),
            partition_index=index,
        )
        empty = request.encode(fetch.session_answer(request, session_id, topic_id, **members))
        full = request.encode(fetch.session_answer(request, session_id, topic_id, **members, records=_RECORDS))
        self._start, rest = full.split(_pack_int(session_id))
        _, rest = rest.split(topic_id + bytes([_ONE_TOPIC]) + _pack_int(index))
        self._entry_start, rest = rest.split(offsets)
        self._entry_middle, self._entry_end = rest.split(unsigned_varint(len(_RECORDS) + 1) + _RECORDS)
        self._no_records = empty.split(offsets)[1][len(self._entry_middle) : -len(self._entry_end)]
        self._entry = struct_of(f">i{len(self._entry_start)}sqqq{len(self._entry_middle)}s")

    def read(self, frame: memoryview) -> tuple[int, int, int, bytes, AskedPartitions] | None:
        """Returns correlation id, session id, epoch, topic id and partitions; None if the frame has another layout."""
        shape, tail = self._shape, self._tail
        at, end = shape.size, len(frame) - len(tail)
        if end <= at:
            return None
        head, correlation_id, prefix, session_id, epoch = shape.unpack_from(frame)
        if head != self.head or prefix != self._prefix or bytes(frame[end:]) != tail:
            return None
        if end == at + 1 and frame[at] == _NO_TOPIC:
            return correlation_id, session_id, epoch, b"", []
        first = at + 1 + _ID_SIZE + 1
        size = end - 1 - first
        count = size // _PARTITION.size
        if (
            not 1 <= count <= _MAX_PARTITIONS
            or size != count * _PARTITION.size
            or frame[at] != _ONE_TOPIC
            or frame[first - 1] != count + 1
            or frame[end - 1]
        ):
            return None
        asked: AskedPartitions = list(_PARTITION.iter_unpack(frame[first : end - 1]))
        for partition in asked:
            if partition[6] or partition[3] >= 0:  # tags, or a last fetched epoch
                return None
        return correlation_id, session_id, epoch, bytes(frame[at + 1 : at + 1 + _ID_SIZE]), asked

    def entry(self, index: int, high_watermark: int, last_stable_offset: int, log_start_offset: int) -> bytes:
        """Returns the bytes of a partition in the response, up to its records."""
        entry: bytes = self._entry.pack(
            index, self._entry_start, high_watermark, last_stable_offset, log_start_offset, self._entry_middle
        )
        return entry

    def parts(
        self, correlation_id: int, session_id: int, topic_id: bytes, entries: list[tuple[bytes, FileSlice | None]]
    ) -> list[Any]:
        """Returns the parts of the response frame: the slices, and the bytes between them."""
        pieces = [
            b"",
            _NO_TAGS,  # of the header
            self._start,
            _pack_int(session_id),
            bytes([_ONE_TOPIC]),
            topic_id,
            unsigned_varint(len(entries) + 1),
        ]
        parts: list[Any] = []
        size = 4  # the correlation id
        for entry, slice_ in entries:
            pieces.append(entry)
            if slice_ is None:
                pieces.append(self._no_records)
            else:
                pieces.append(unsigned_varint(slice_.size + 1))
                data = b"".join(pieces)
                size += len(data) + slice_.size
                parts += (data, slice_)
                pieces = []
            pieces.append(_NO_TAGS)
        pieces[-1] = self._entry_end  # the tags of the last partition, of the topic and of the response
        last = b"".join(pieces)
        parts.append(last)
        parts[0] = _pack_int(size + len(last)) + _pack_int(correlation_id) + parts[0]
        return parts


def layout_of(frame: memoryview, request: Request, generation: int) -> FetchLayout | None:
    """Returns the layout of a decoded request; None if requests like it are not recognised."""
    body, version = request.body, request.route.version
    if (
        version < _FIRST_VERSION
        or fetch.replica_id(request) != fetch.CONSUMER
        or len(body.topics) > 1
        or body.forgotten_topics_data
    ):
        return None
    encode = codec(request.route.api.request, version).to_bytes
    encoded = encode(body)
    body.session_id, session_id = _INT_PLACEHOLDERS[0], body.session_id
    start, *rest = encode(body).split(_pack_int(_INT_PLACEHOLDERS[0]))
    body.session_id = session_id
    prefix_end = len(frame) - len(encoded) + len(start)
    count = sum(len(topic.partitions) for topic in body.topics)
    topics_size = 1 + (_ID_SIZE + 2 + count * _PARTITION.size if body.topics else 0)
    tail = bytes(frame[prefix_end + 8 + topics_size :])
    if len(rest) != 1 or prefix_end + len(tail) > MAX_KEY_SIZE or bytes(frame[len(frame) - len(encoded) :]) != encoded:
        return None  # valid, but encoded in another way than usual
    head, prefix = bytes(frame[:HEAD_SIZE]), bytes(frame[KEY_POSITION:prefix_end])
    layout = FetchLayout(request, head, prefix, tail, generation)
    return None if layout.read(frame) is None else layout


def answer_partitions(
    context: Context, client: ClientSession, layout: FetchLayout, frame: memoryview, slot: RequestSlot
) -> bool:
    """Answers the request if it has this layout. Returns False if the handler must answer."""
    found = layout.read(frame)
    if found is None:
        return False
    correlation_id, session_id, epoch, topic_id, asked = found
    if session_id == 0 and epoch == FINAL_EPOCH:
        return _answer_all(context, client, layout, slot, correlation_id, topic_id, asked)
    session = context.fetch_sessions.find(session_id, epoch, uses_topic_ids=True)
    if session is None:
        return False
    return _answer_session(context, client, layout, slot, correlation_id, session, topic_id, asked)


def _answer_all(
    context: Context,
    client: ClientSession,
    layout: FetchLayout,
    slot: RequestSlot,
    correlation_id: int,
    topic_id: bytes,
    asked: AskedPartitions,
) -> bool:
    read = _Read(context, layout, topic_id)
    if not read.is_allowed(client, slot):
        return False
    for index, leader_epoch, offset, _, _, max_bytes, _ in asked:
        if not read.add(index, leader_epoch, offset, max_bytes):
            read.release()
            return False
    if not read.is_enough():
        read.release()
        return False
    read.answer(slot, correlation_id, 0, [(answer[3], answer[4]) for answer in read.answers])
    return True


def _answer_session(
    context: Context,
    client: ClientSession,
    layout: FetchLayout,
    slot: RequestSlot,
    correlation_id: int,
    session: FetchSession,
    topic_id: bytes,
    asked: AskedPartitions,
) -> bool:
    targets = session.targets
    for index, leader_epoch, offset, last_fetched_epoch, log_start_offset, max_bytes, _ in asked:
        target = targets.get((topic_id, index))
        if target is None:
            return False
        # The handler would set the same values, so that they may stay if it has to answer.
        target.set(offset, max_bytes, leader_epoch, last_fetched_epoch, log_start_offset)
    ordered: list[FetchTarget] = list(targets.values())
    if not ordered:
        return False
    topic = ordered[0].topic
    if not isinstance(topic, bytes):
        return False
    read = _Read(context, layout, topic)
    if not read.is_allowed(client, slot):
        return False
    for target in ordered:
        if (
            target.topic != topic
            or target.last_fetched_epoch >= 0
            or not read.add(target.index, target.current_leader_epoch, target.fetch_offset, target.max_bytes)
        ):
            read.release()
            return False
    if not read.is_enough():
        read.release()
        return False
    context.fetch_sessions.resume(session.id, session.epoch, uses_topic_ids=True)
    entries: list[tuple[bytes, FileSlice | None]] = []
    for target, (_, high_watermark, log_start_offset, entry, slice_) in zip(ordered, read.answers, strict=True):
        if target.is_news(high_watermark, log_start_offset) or slice_ is not None:
            entries.append((entry, slice_))
        if slice_ is not None:
            session.move_behind(target)
    read.answer(slot, correlation_id, session.id, entries)
    return True


class _Read:
    """Slices of the partitions of one request."""

    __slots__ = ("_context", "_layout", "_left", "_name", "_size", "_topic_id", "answers")

    def __init__(self, context: Context, layout: FetchLayout, topic_id: bytes) -> None:
        self._context = context
        self._layout = layout
        self._topic_id = topic_id
        self._name = context.partitions.topic_name(topic_id)
        self._left = min(layout.max_bytes, context.config.fetch_max_bytes)
        self._size = 0
        self.answers: list[tuple[Partition, int, int, bytes, FileSlice | None]] = []
        """Partition, high watermark, log start offset, bytes up to the records, and records."""

    def is_allowed(self, client: ClientSession, slot: RequestSlot) -> bool:
        name = self._name
        return name is not None and (
            self._context.authorizer.allows_all or allows_repeated(self._context, client, slot, _READ, name)
        )

    def add(self, index: int, leader_epoch: int, offset: int, max_bytes: int) -> bool:
        """Reads a partition. Returns False if the handler must answer with an error or list aborted transactions."""
        layout, table, name = self._layout, self._context.partitions, self._name
        partition = None if name is None else table.get(name, index) or table.follower(name, index)
        if partition is None or 0 <= leader_epoch != partition.leader_epoch:
            return False
        log = partition.opened_log
        if log is None or not log.log_start_offset <= offset <= log.log_end_offset:
            return False
        high_watermark, last_stable_offset = log.high_watermark, log.last_stable_offset
        bound = last_stable_offset if layout.is_committed else high_watermark
        size = min(max_bytes, self._left)
        records: FileSlice | None = None
        if offset < bound and (size > 0 or self._size == 0):
            try:
                found = partition.read(offset, size, bound, is_first=self._size == 0)
            except StorageFailure:
                return False
            if isinstance(found, FileSlice):
                records = found
                self._size += found.size
                self._left -= found.size
            elif found is not None:
                return False
        entry = layout.entry(index, high_watermark, last_stable_offset, log.log_start_offset)
        self.answers.append((partition, high_watermark, log.log_start_offset, entry, records))
        return records is None or not layout.is_committed or not log.aborted_transactions(offset, bound, records)

    def is_enough(self) -> bool:
        return self._size > 0 and self._size >= self._layout.min_bytes

    def release(self) -> None:
        for _, _, _, _, records in self.answers:
            if records is not None:
                records.release()

    def answer(
        self,
        slot: RequestSlot,
        correlation_id: int,
        session_id: int,
        entries: list[tuple[bytes, FileSlice | None]],
    ) -> None:
        for partition, _, _, _, records in self.answers:
            if records is not None:
                partition.fetched_bytes += records.size
        tally = self._layout.route.tally
        tally.on_received()
        tally.answered_in_run += 1
        slot.complete(self._layout.parts(correlation_id, session_id, self._topic_id, entries))
