"""Requests of hostile clients as bytes: very many elements in one request, announced bytes, batches that take long.

Written by hand like `frames.py`: encoding a million elements with codecs would take longer than the attack.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterable, Sequence

from benchmarks.encoding import compact, frame, string, uvarint, varint
from benchmarks.frames import TIMEOUT_MS, record_batch

__all__ = [
    "CONFIG_TOPIC",
    "add_partitions_frame",
    "alter_empty_configs_frame",
    "announcement",
    "claiming_batch",
    "commit_many_frame",
    "create_topics_frame",
    "delete_credentials_frame",
    "delete_groups_frame",
    "describe_configs_frame",
    "describe_groups_frame",
    "describe_producers_frame",
    "describe_topics_frame",
    "describe_users_frame",
    "fetch_many_frame",
    "fetch_offsets_of_many_frame",
    "find_coordinators_frame",
    "join_large_frame",
    "leave_many_frame",
    "list_many_offsets_frame",
    "many_messages",
    "many_records",
    "metadata_frame",
    "names",
    "parked_fetch_frame",
    "produce_messages_frame",
    "quotas_frame",
    "regex_heartbeat_frame",
    "sync_alone_frame",
    "tagged_frame",
    "txn_commit_many_frame",
]

NULL = struct.pack(">h", -1)
CONFIG_TOPIC = 2


def names(prefix: bytes, count: int) -> list[bytes]:
    return [b"%s-%07d" % (prefix, number) for number in range(count)]


def announcement(size: int) -> bytes:
    """Returns the length of a frame, and two bytes of it."""
    return struct.pack(">i", size) + b"ab"


def metadata_frame(topics: Sequence[bytes], *, may_create: bool) -> bytearray:
    return frame(3, 4, strings(topics) + struct.pack(">b", may_create))


def describe_configs_frame(kind: int, resources: Sequence[bytes]) -> bytearray:
    """Returns a request for all configs of each resource."""
    head = struct.pack(">b", kind)
    every = struct.pack(">i", -1)
    return frame(32, 0, array([head + string(name) + every for name in resources]))


def create_topics_frame(topics: Sequence[bytes], *, validate_only: bool) -> bytearray:
    settings = struct.pack(">ihii", 1, 1, 0, 0)
    body = array([string(name) + settings for name in topics])
    return frame(19, 2, body + struct.pack(">ib", TIMEOUT_MS, validate_only))


def describe_groups_frame(groups: Sequence[bytes]) -> bytearray:
    return frame(15, 0, strings(groups))


def delete_groups_frame(groups: Sequence[bytes]) -> bytearray:
    return frame(42, 0, strings(groups))


def find_coordinators_frame(groups: Sequence[bytes]) -> bytearray:
    body = b"\0" + uvarint(len(groups) + 1) + b"".join(map(compact, groups)) + b"\0"
    return frame(10, 4, body, flexible=True)


def describe_topics_frame(topics: Sequence[bytes]) -> bytearray:
    body = uvarint(len(topics) + 1) + b"".join(compact(name) + b"\0" for name in topics)
    return frame(75, 0, body + struct.pack(">ib", 2_000, -1) + b"\0", flexible=True)


def describe_producers_frame(topic: bytes, times: int) -> bytearray:
    """Returns a request that names partition 0 of the topic many times."""
    body = b"\2" + compact(topic) + uvarint(times + 1) + bytes(4 * times) + b"\0\0"
    return frame(61, 0, body, flexible=True)


def alter_empty_configs_frame(resources: Sequence[bytes]) -> bytearray:
    head, configs = struct.pack(">b", CONFIG_TOPIC), struct.pack(">i", 0)
    return frame(33, 0, array([head + string(name) + configs for name in resources]) + b"\0")


def fetch_offsets_of_many_frame(group: bytes, topic: bytes, count: int) -> bytearray:
    return frame(9, 1, string(group) + struct.pack(">i", 1) + string(topic) + indexes(count))


def list_many_offsets_frame(topic: bytes, count: int) -> bytearray:
    partitions = array([struct.pack(">iq", number, -1) for number in range(count)])
    return frame(2, 1, struct.pack(">ii", -1, 1) + string(topic) + partitions)


def commit_many_frame(group: bytes, topic: bytes, count: int) -> bytearray:
    head = string(group) + struct.pack(">i", -1) + string(b"") + struct.pack(">qi", -1, 1)
    return frame(8, 2, head + string(topic) + committed(count))


def txn_commit_many_frame(group: bytes, topic: bytes, count: int) -> bytearray:
    head = string(b"hostile") + string(group) + struct.pack(">qhi", 7, 0, 1)
    return frame(28, 0, head + string(topic) + committed(count))


def committed(count: int) -> bytes:
    return array([struct.pack(">iq", number, 0) + NULL for number in range(count)])


def add_partitions_frame(topic: bytes, count: int) -> bytearray:
    head = string(b"hostile") + struct.pack(">qhi", 7, 0, 1)
    return frame(24, 0, head + string(topic) + indexes(count))


def leave_many_frame(group: bytes, members: Sequence[bytes]) -> bytearray:
    return frame(13, 3, string(group) + array([string(member) + NULL for member in members]))


def fetch_many_frame(topic: bytes, count: int, *, session_epoch: int) -> bytearray:
    """Returns a Fetch of many partitions, which opens a session if its epoch is 0."""
    rest = struct.pack(">qqi", 0, -1, 1000)
    partitions = array([struct.pack(">i", number) + rest for number in range(count)])
    head = struct.pack(">iiiibiii", -1, 0, 1, 1_000_000, 0, 0, session_epoch, 1)
    return frame(1, 7, head + string(topic) + partitions + struct.pack(">i", 0))


def parked_fetch_frame(topic: bytes, offset: int, *, wait_ms: int) -> bytearray:
    """Returns a Fetch of partition 0 that waits for a record."""
    head = struct.pack(">iiiibi", -1, wait_ms, 1, 1_000_000, 0, 1)
    return frame(1, 4, head + string(topic) + struct.pack(">iiqi", 1, 0, offset, 1000))


def join_large_frame(group: bytes, size: int) -> bytearray:
    """Returns JoinGroup v0 with so many bytes of metadata."""
    body = string(group) + struct.pack(">i", 60_000) + string(b"") + string(b"consumer")
    return frame(11, 0, body + struct.pack(">i", 1) + string(b"range") + struct.pack(">i", size) + bytes(size))


def sync_alone_frame(group: bytes, generation: int, member: bytes) -> bytearray:
    """Returns SyncGroup v0 of the only member."""
    body = string(group) + struct.pack(">i", generation) + string(member) + struct.pack(">i", 1)
    return frame(14, 0, body + string(member) + struct.pack(">i", 4) + bytes(4))


def regex_heartbeat_frame(group: bytes, member: bytes, regex: bytes) -> bytearray:
    """Returns ConsumerGroupHeartbeat v1 that joins with a regular expression."""
    body = compact(group) + compact(member) + struct.pack(">i", 0) + b"\0\0" + struct.pack(">i", 60_000)
    return frame(68, 1, body + b"\0" + compact(regex) + b"\0\1\0", flexible=True)


def quotas_frame(users: Iterable[bytes], *, remove: bool) -> bytearray:
    operation = struct.pack(">i", 1) + string(b"producer_byte_rate") + struct.pack(">d?", 1e9, remove)
    entity = struct.pack(">i", 1) + string(b"user")
    return frame(49, 0, array([entity + string(user) + operation for user in users]) + b"\0")


def delete_credentials_frame(users: Sequence[bytes], mechanism: int) -> bytearray:
    """Returns a request that deletes one SCRAM credential of each user."""
    deletions = b"".join(compact(user) + struct.pack(">bx", mechanism) for user in users)
    return frame(51, 0, uvarint(len(users) + 1) + deletions + uvarint(1) + b"\0", flexible=True)


def describe_users_frame(users: Sequence[bytes]) -> bytearray:
    asked = b"".join(compact(user) + b"\0" for user in users)
    return frame(50, 0, uvarint(len(users) + 1) + asked + b"\0", flexible=True)


def tagged_frame(count: int) -> bytearray:
    """Returns an ApiVersions request with so many tagged fields that nobody knows. It needs no login."""
    return frame(18, 3, compact(b"a") + compact(b"1") + uvarint(count) + b"\x7f\0" * count, flexible=True)


def claiming_batch() -> bytes:
    """Returns a batch of about 111 bytes that claims 2^31 - 1 records."""
    return record_batch(2**31 - 1, bytes(50), now_ms=1_000)


def many_records(count: int) -> bytes:
    """Returns the smallest records that have neither a key nor a value."""
    records = bytearray()
    for number in range(count):
        body = b"\0\0" + varint(number) + b"\1\1\0"
        records += varint(len(body)) + body
    return bytes(records)


def many_messages(count: int) -> bytes:
    """Returns one compressed message of magic 1 with many inner messages."""
    empty = message(b"\1\0" + struct.pack(">qii", 1_000, -1, -1))
    inner = gzip.compress(b"".join([struct.pack(">q", number) + empty for number in range(count)]), 6)
    outer = b"\1\1" + struct.pack(">qii", 1_000, -1, len(inner)) + inner
    return struct.pack(">q", count - 1) + message(outer)


def message(body: bytes) -> bytes:
    """Returns size, CRC and body."""
    return struct.pack(">iI", len(body) + 4, zlib.crc32(body)) + body


def produce_messages_frame(topic: bytes, messages: bytes) -> bytearray:
    head = struct.pack(">hii", 1, TIMEOUT_MS, 1) + string(topic)
    return frame(0, 2, head + struct.pack(">iii", 1, 0, len(messages)) + messages)


def strings(values: Sequence[bytes]) -> bytes:
    return array([string(value) for value in values])


def indexes(count: int) -> bytes:
    return array([struct.pack(">i", number) for number in range(count)])


def array(elements: Sequence[bytes]) -> bytes:
    return struct.pack(">i", len(elements)) + b"".join(elements)
