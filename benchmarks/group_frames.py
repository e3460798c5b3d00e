"""Requests of consumer groups as bytes, and readers for the checked fields of their responses; see `frames.py`."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.encoding import Buffer, compact, frame, read_uvarint, string, uvarint

__all__ = [
    "CONSUMER_GROUP_HEARTBEAT",
    "ConsumerHeartbeat",
    "Joined",
    "api_versions_frame",
    "commit_frame",
    "consumer_heartbeat_frame",
    "fetch_offsets_frame",
    "find_coordinator_frame",
    "heartbeat_frame",
    "join_frame",
    "list_groups_frame",
    "read_api_versions_answer",
    "read_commit_answer",
    "read_consumer_heartbeat_answer",
    "read_error_after_throttle",
    "read_fetch_offsets_answer",
    "read_find_coordinator_answer",
    "read_join_answer",
    "read_sync_answer",
    "sync_frame",
]

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, SYNC_GROUP = 8, 9, 10, 11, 12, 14
LIST_GROUPS, API_VERSIONS, CONSUMER_GROUP_HEARTBEAT = 16, 18, 68
SESSION_TIMEOUT_MS = 60_000
NULL = struct.pack(">h", -1)
NO_MEMBER, NO_GENERATION = b"", -1

unpack_int = struct.Struct(">i").unpack_from
unpack_short = struct.Struct(">h").unpack_from


class Joined(NamedTuple):
    error_code: int
    generation: int
    member_id: bytes
    member_ids: Sequence[bytes]
    """Ids of all members; empty for members other than the leader."""


class ConsumerHeartbeat(NamedTuple):
    error_code: int
    member_epoch: int
    assignment: Mapping[bytes, Sequence[int]] | None
    """Topic id -> partitions; None if unchanged."""


def api_versions_frame() -> bytearray:
    return frame(API_VERSIONS, 0, b"")


def read_api_versions_answer(answer: Buffer) -> dict[int, tuple[int, int]]:
    """Returns API key -> lowest and highest version."""
    count: int = unpack_int(answer, 6)[0]
    rows = [struct.unpack_from(">hhh", answer, 10 + 6 * index) for index in range(count)]
    return {key: (low, high) for key, low, high in rows}


def find_coordinator_frame(group: bytes) -> bytearray:
    return frame(FIND_COORDINATOR, 0, string(group))


def read_find_coordinator_answer(answer: Buffer) -> int:
    return _short(answer, 4)


def join_frame(group: bytes, member_id: bytes, topic: bytes) -> bytearray:
    """Returns JoinGroup v5 with one protocol, for a consumer that subscribes to one topic."""
    subscription = struct.pack(">hi", 0, 1) + string(topic) + struct.pack(">i", -1)
    body = string(group) + struct.pack(">ii", SESSION_TIMEOUT_MS, SESSION_TIMEOUT_MS) + string(member_id) + NULL
    body += string(b"consumer") + struct.pack(">i", 1) + string(b"range") + _bytes(subscription)
    return frame(JOIN_GROUP, 5, body)


def read_join_answer(answer: Buffer) -> Joined:
    code, generation = struct.unpack_from(">hi", answer, 8)
    _, position = _read_string(answer, 14)
    _, position = _read_string(answer, position)
    member_id, position = _read_string(answer, position)
    count: int = unpack_int(answer, position)[0]
    position += 4
    member_ids = []
    for _ in range(count):
        listed_id, position = _read_string(answer, position)
        _, position = _read_string(answer, position)
        position += 4 + unpack_int(answer, position)[0]
        member_ids.append(listed_id)
    return Joined(code, generation, member_id, member_ids)


def sync_frame(
    group: bytes, generation: int, member_id: bytes, assignments: Mapping[bytes, Sequence[int]], topic: bytes
) -> bytearray:
    """Returns SyncGroup v3. Only the leader sends assignments, for all members."""
    body = _member(group, generation, member_id) + struct.pack(">i", len(assignments))
    for assignee, partitions in assignments.items():
        assigned = struct.pack(">hi", 0, 1) + string(topic) + _ints(partitions) + struct.pack(">i", -1)
        body += string(assignee) + _bytes(assigned)
    return frame(SYNC_GROUP, 3, body)


def read_sync_answer(answer: Buffer) -> tuple[int, int]:
    """Returns the error code and the size of the assignment in bytes."""
    code, size = struct.unpack_from(">hi", answer, 8)
    return code, size


def heartbeat_frame(group: bytes, generation: int, member_id: bytes) -> bytearray:
    return frame(HEARTBEAT, 3, _member(group, generation, member_id))


def read_error_after_throttle(answer: Buffer) -> int:
    """Returns the error code of a Heartbeat or ListGroups response."""
    return _short(answer, 8)


def list_groups_frame() -> bytearray:
    return frame(LIST_GROUPS, 2, b"")


def commit_frame(
    group: bytes,
    topic: bytes,
    partitions: Iterable[int],
    *,
    offset: int = 0,
    generation: int = NO_GENERATION,
    member_id: bytes = NO_MEMBER,
) -> bytearray:
    """Returns OffsetCommit v7. With one partition, its index is 18 bytes before the end, followed by its offset."""
    rows = [struct.pack(">iqih", partition, offset, -1, 0) for partition in partitions]
    body = _member(group, generation, member_id) + struct.pack(">i", 1) + string(topic)
    return frame(OFFSET_COMMIT, 7, body + struct.pack(">i", len(rows)) + b"".join(rows))


def read_commit_answer(answer: Buffer, topic: bytes) -> set[int]:
    """Returns the distinct error codes."""
    position = 4 + 4 + 4 + 2 + len(topic)
    count: int = unpack_int(answer, position)[0]
    return {_short(answer, position + 8 + 6 * index) for index in range(count)}


def fetch_offsets_frame(group: bytes, topic: bytes | None = None, partitions: Sequence[int] = ()) -> bytearray:
    """Returns OffsetFetch v5 for one topic, or for all topics if `topic` is None."""
    topics = struct.pack(">i", -1) if topic is None else struct.pack(">i", 1) + string(topic) + _ints(partitions)
    return frame(OFFSET_FETCH, 5, string(group) + topics)


def read_fetch_offsets_answer(answer: Buffer, topic: bytes) -> tuple[int, dict[int, int]]:
    """Returns the error code, and partition -> committed offset; -1 if none is committed."""
    position = 4 + 4 + 4
    offsets: dict[int, int] = {}
    if unpack_int(answer, 8)[0]:
        position += 2 + len(topic)
        count: int = unpack_int(answer, position)[0]
        position += 4
        for _ in range(count):
            partition, offset = struct.unpack_from(">iq", answer, position)
            _, position = _read_string(answer, position + 16)
            position += 2
            offsets[partition] = offset
    return _short(answer, position), offsets


def consumer_heartbeat_frame(
    group: bytes, member_id: bytes, epoch: int, *, topic: bytes, owned: Mapping[bytes, Sequence[int]]
) -> bytearray:
    """Returns ConsumerGroupHeartbeat v1 with all fields set, also the unchanged ones."""
    body = compact(group) + compact(member_id) + struct.pack(">i", epoch) + b"\0\0"
    body += struct.pack(">i", SESSION_TIMEOUT_MS) + b"\2" + compact(topic) + b"\0\0" + uvarint(len(owned) + 1)
    for topic_id, partitions in owned.items():
        body += topic_id + uvarint(len(partitions) + 1)
        body += struct.pack(f">{len(partitions)}i", *partitions) + b"\0"
    return frame(CONSUMER_GROUP_HEARTBEAT, 1, body + b"\0", flexible=True)


def read_consumer_heartbeat_answer(answer: Buffer) -> ConsumerHeartbeat:
    code = _short(answer, 9)
    position = _skip_compact(answer, _skip_compact(answer, 11))
    epoch, _, presence = struct.unpack_from(">iib", answer, position)
    if presence < 0:
        return ConsumerHeartbeat(code, epoch, None)
    assignment: dict[bytes, Sequence[int]] = {}
    topics, position = read_uvarint(answer, position + 9)
    for _ in range(topics - 1):
        topic_id = bytes(answer[position : position + 16])
        size, position = read_uvarint(answer, position + 16)
        assignment[topic_id] = struct.unpack_from(f">{size - 1}i", answer, position)
        position += 4 * (size - 1) + 1
    return ConsumerHeartbeat(code, epoch, assignment)


def _member(group: bytes, generation: int, member_id: bytes) -> bytes:
    return string(group) + struct.pack(">i", generation) + string(member_id) + NULL


def _bytes(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def _ints(values: Sequence[int]) -> bytes:
    return struct.pack(f">i{len(values)}i", len(values), *values)


def _short(answer: Buffer, position: int) -> int:
    value: int = unpack_short(answer, position)[0]
    return value


def _read_string(answer: Buffer, position: int) -> tuple[bytes, int]:
    """Returns a string and the position after it; null is read as empty."""
    end = position + 2 + max(_short(answer, position), 0)
    return bytes(answer[position + 2 : end]), end


def _skip_compact(answer: Buffer, position: int) -> int:
    size, position = read_uvarint(answer, position)
    return position + max(size - 1, 0)
