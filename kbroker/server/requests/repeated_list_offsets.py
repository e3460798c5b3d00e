"""Repeated ListOffsets requests: the latest or earliest offset of one partition, for a consumer. Hot path.

Spark asks for both after every poll. Such a request is the same each time but for its correlation id, so that all bytes
behind it are the key, and no shape is needed.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, cast

from kbroker.protocol.acl_codes import AclOperation
from kbroker.server.access.permissions import allows_repeated
from kbroker.server.handlers import list_offsets
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
    from kbroker.server.requests.client_session import ClientSession
    from kbroker.server.requests.request import Request
    from kbroker.server.wire.request_slot import RequestSlot

__all__ = ["RepeatedListOffsets"]

_FIRST_VERSION: Final = 1  # v0 returns the start offsets of segments
_LEADER_EPOCH_SINCE: Final = 4
_EPOCH_PLACEHOLDER: Final = 0x5E70FF5E
_DESCRIBE: Final = AclOperation.DESCRIBE  # reading the member of an enum is slow

_pack_offset: Final = Struct(">q").pack
_pack_offset_and_epoch: Final = Struct(">qi").pack
_unpack_head: Final = Struct(f">{HEAD_SIZE}si").unpack_from


class KnownListOffsets(KnownRequest):
    __slots__ = ("_end", "_has_epoch", "_leader_epoch", "_pack", "_size", "_start", "is_committed", "is_latest")

    def __init__(self, request: Request, head: bytes, partition: Partition) -> None:
        super().__init__(request.route, head, partition)
        body = request.body
        self.is_latest: bool = body.topics[0].partitions[0].timestamp == list_offsets.LATEST
        self.is_committed: bool = body.isolation_level == list_offsets.READ_COMMITTED
        self._leader_epoch = partition.leader_epoch
        self._has_epoch = self.route.version >= _LEADER_EPOCH_SINCE
        offset, epoch = PLACEHOLDERS[0], _EPOCH_PLACEHOLDER
        place = _pack_offset_and_epoch(offset, epoch) if self._has_epoch else _pack_offset(offset)
        start, end = request.encode(list_offsets.plain_answer(request, offset, epoch)).split(place)
        if self.route.has_flexible_header:
            start = b"\0" + start  # tags of the header
        layout = struct_of(f">ii{len(start)}sq{'i' if self._has_epoch else ''}{len(end)}s")
        self._start, self._end, self._size, self._pack = start, end, layout.size - 4, layout.pack

    def is_current(self) -> bool:
        """Whether the checks that were made when the request was learnt still hold."""
        return not self.partition.is_gone and self.partition.leader_epoch == self._leader_epoch

    def answer(self, correlation_id: int) -> bytes | None:
        """Returns the response frame; None if the handler must answer."""
        partition = self.partition
        log = partition.opened_log
        if log is None or not self.is_current():
            return None
        if self.is_latest:
            if partition.leadership is not None and list_offsets.is_catching_up(partition):
                return None
            offset = log.last_stable_offset if self.is_committed else log.high_watermark
            epoch = self._leader_epoch
        else:
            offset = log.log_start_offset
            epoch = list_offsets.earliest_epoch(partition) if self._has_epoch else 0
        answer: bytes
        if self._has_epoch:
            answer = self._pack(self._size, correlation_id, self._start, offset, epoch, self._end)
        else:
            answer = self._pack(self._size, correlation_id, self._start, offset, self._end)
        return answer


class RepeatedListOffsets(RepeatedRequests):
    __slots__ = ()

    def handle(self, session: ClientSession, frame: memoryview, slot: RequestSlot) -> bool:
        if not KEY_POSITION < len(frame) <= MAX_KEY_SIZE:
            return False
        found = self.known.get(bytes(frame[KEY_POSITION:]))
        if found is None or not (
            self.context.authorizer.allows_all
            or allows_repeated(self.context, session, slot, _DESCRIBE, found.partition.topic)
        ):
            return False
        head, correlation_id = _unpack_head(frame)
        if found.head != head:
            return False
        answer = cast(KnownListOffsets, found).answer(correlation_id)
        if answer is None:
            return False
        tally = found.route.tally
        tally.on_received()
        tally.answered_in_run += 1
        slot.complete((answer,))
        return True

    def learn(self, session: ClientSession, frame: memoryview, request: Request) -> None:
        body = request.body
        if (
            session.list_offsets_left <= 0
            or request.route.version < _FIRST_VERSION
            or len(frame) > MAX_KEY_SIZE
            or body.replica_id != list_offsets.CONSUMER
            or len(body.topics) != 1
            or len(body.topics[0].partitions) != 1
        ):
            return
        (topic,) = body.topics
        (asked,) = topic.partitions
        partition = self.context.partitions.get(topic.name, asked.partition_index)
        if (
            partition is None
            or asked.timestamp not in (list_offsets.LATEST, list_offsets.EARLIEST)
            or partition.check_leader_epoch(asked.current_leader_epoch)
        ):
            return
        head, key = bytes(frame[:HEAD_SIZE]), bytes(frame[KEY_POSITION:])
        known = self.known.get(key)
        if known is not None and known.head == head and cast(KnownListOffsets, known).is_current():
            return  # the handler had to answer for another reason
        self.remember(key, KnownListOffsets(request, head, partition))
        session.list_offsets_left -= 1
