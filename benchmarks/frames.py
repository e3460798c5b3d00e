"""Requests as bytes, built before the measurement, and readers for the checked fields of responses.

Written by hand, without kbroker's codecs: the load must be cheap and must not share a mistake with the broker.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.encoding import CORRELATION_AT, Buffer, compact, frame, read_uvarint, string, uvarint, varint
from kbroker.protocol.crc32c import crc32c

__all__ = [
    "CORRELATION_AT",
    "NO_CONFIGS",
    "Buffer",
    "ClusterState",
    "FetchAnswer",
    "PartitionState",
    "ProduceAnswer",
    "ProducerId",
    "alter_configs_frame",
    "batch_is_whole",
    "create_topic_frame",
    "describe_log_dirs_frame",
    "fetch_frame",
    "init_producer_frame",
    "list_offsets_frame",
    "make_records",
    "metadata_frame",
    "next_offset_after",
    "produce_frame",
    "read_alter_configs_answer",
    "read_create_topic_answer",
    "read_describe_log_dirs_answer",
    "read_fetch_answer",
    "read_init_producer_answer",
    "read_list_offsets_answer",
    "read_metadata_answer",
    "read_produce_answer",
    "record_batch",
]

PRODUCE, FETCH, LIST_OFFSETS, METADATA, CREATE_TOPICS, INIT_PRODUCER_ID = 0, 1, 2, 3, 19, 22
DESCRIBE_LOG_DIRS, INCREMENTAL_ALTER_CONFIGS = 35, 44
NO_CONFIGS: Mapping[bytes, bytes] = {}
FIRST_FLEXIBLE_PRODUCE = 9
FIRST_FLEXIBLE_FETCH = 12
LATEST = -1
TIMEOUT_MS = 60_000

CORRELATION = struct.Struct(">i")
CODE_AND_BASE = struct.Struct(">hq")
BATCH_HEAD = struct.Struct(">qi11xi")  # base offset, length, …, last offset delta
BATCH_HEADER_SIZE = 61


class ProducerId(NamedTuple):
    id: int
    epoch: int


class ProduceAnswer(NamedTuple):
    correlation_id: int
    error_code: int
    base_offset: int


class FetchAnswer(NamedTuple):
    correlation_id: int
    error_code: int
    position: int
    size: int


class PartitionState(NamedTuple):
    error_code: int
    leader: int
    in_sync: int
    """Number of replicas in the ISR."""


class ClusterState(NamedTuple):
    brokers: Mapping[int, tuple[str, int]]
    controller: int
    """-1 if there is none."""
    partitions: Mapping[int, PartitionState]


NO_PRODUCER = ProducerId(-1, -1)


def make_records(count: int, size: int, *, keys: Sequence[bytes] = (), is_text: bool = False) -> bytes:
    """Returns encoded records without headers, with the given keys or without keys.

    The values are random, so that they cannot be compressed, or text that a codec makes three to four times smaller.
    """
    records = bytearray()
    for index in range(count):
        key = varint(len(keys[index])) + keys[index] if keys else varint(-1)
        value = make_text(size) if is_text else os.urandom(size)
        body = b"\0" + varint(0) + varint(index) + key + varint(size) + value + varint(0)
        records += varint(len(body)) + body
    return bytes(records)


def make_text(size: int) -> bytes:
    """Returns orders as JSON, with random fields."""
    text = b""
    while len(text) < size:
        number = int.from_bytes(os.urandom(6), "big")
        text += b'{"order": %d, "customer": "c-%05d", "state": "shipped", "items": [%d, %d]}' % (
            number,
            number % 50_000,
            number % 97,
            number % 89,
        )
    return text[:size]


def record_batch(
    count: int, records: bytes, *, now_ms: int, producer: ProducerId = NO_PRODUCER, sequence: int = -1, codec: int = 0
) -> bytes:
    """Returns a batch. The caller has compressed the records with the codec."""
    tail = struct.pack(">hiqqqhii", codec, count - 1, now_ms, now_ms, *producer, sequence, count) + records
    rest = struct.pack(">ibI", -1, 2, crc32c(tail)) + tail
    return struct.pack(">qi", 0, len(rest)) + rest


def produce_frame(*, version: int, topic: bytes, batch: bytes, acks: int) -> tuple[bytearray, int]:
    """Returns a Produce request of one batch to partition 0, and the partition's position in the frame."""
    if version < FIRST_FLEXIBLE_PRODUCE:
        head = struct.pack(">hhii", -1, acks, TIMEOUT_MS, 1) + string(topic) + struct.pack(">i", 1)
        length, tail = struct.pack(">i", len(batch)), b""
    else:
        head = b"\0" + struct.pack(">hi", acks, TIMEOUT_MS) + b"\2" + compact(topic) + b"\2"
        length, tail = uvarint(len(batch) + 1), b"\0\0\0"
    body = head + struct.pack(">i", 0) + length + batch + tail
    built = frame(PRODUCE, version, body, flexible=version >= FIRST_FLEXIBLE_PRODUCE)
    return built, len(built) - len(tail) - len(batch) - len(length) - 4


def read_produce_answer(version: int, answer: Buffer, topic: bytes) -> ProduceAnswer:
    flexible = version >= FIRST_FLEXIBLE_PRODUCE
    position = (4 + 1 + 1 + 1 + len(topic) + 1 + 4) if flexible else (4 + 4 + 2 + len(topic) + 4 + 4)
    return ProduceAnswer(CORRELATION.unpack_from(answer)[0], *CODE_AND_BASE.unpack_from(answer, position))


def fetch_frame(*, version: int, topic: bytes, max_bytes: int) -> tuple[bytearray, int]:
    """Returns a Fetch request of partition 0 without a session, and the fetch offset's position in the frame."""
    if version < FIRST_FLEXIBLE_FETCH:
        body = struct.pack(">iiiibi", -1, 100, 1, max_bytes, 0, 1) + string(topic) + struct.pack(">ii", 1, 0)
        tail = struct.pack(">i", max_bytes)
    else:
        body = struct.pack(">iiiibii", -1, 100, 1, max_bytes, 0, 0, -1) + b"\2" + compact(topic) + b"\2"
        body += struct.pack(">ii", 0, -1)
        tail = struct.pack(">iqi", -1, -1, max_bytes) + b"\0\0\1\1\0"
    built = frame(FETCH, version, body + bytes(8) + tail, flexible=version >= FIRST_FLEXIBLE_FETCH)
    return built, len(built) - len(tail) - 8


def read_fetch_answer(version: int, answer: Buffer, topic: bytes) -> FetchAnswer:
    correlation_id: int = CORRELATION.unpack_from(answer)[0]
    if version < FIRST_FLEXIBLE_FETCH:
        position = 4 + 4 + 4 + 2 + len(topic) + 4 + 4
        code, aborted = struct.unpack_from(">h16xi", answer, position)
        position += 2 + 8 + 8 + 4 + 16 * max(aborted, 0)
        size: int = struct.unpack_from(">i", answer, position)[0]
        return FetchAnswer(correlation_id, code, position + 4, size)
    position = 4 + 1 + 4 + 2 + 4 + 1 + 1 + len(topic) + 1 + 4
    code = struct.unpack_from(">h", answer, position)[0]
    aborted, position = read_uvarint(answer, position + 2 + 8 + 8 + 8)
    if aborted > 1:
        raise ValueError("the response has an aborted transaction, but none was written")
    size, position = read_uvarint(answer, position + 4)
    return FetchAnswer(correlation_id, code, position, size - 1)


def next_offset_after(answer: Buffer, position: int, end: int, offset: int) -> tuple[int, int]:
    """Walks the complete batches and returns the next offset and the position of their end.

    Raises ValueError if the batches do not begin at `offset` or leave a gap.
    """
    unpack = BATCH_HEAD.unpack_from
    while position + BATCH_HEADER_SIZE <= end:
        base, length, last_delta = unpack(answer, position)
        if position + 12 + length > end:
            break
        if base != offset:
            raise ValueError(f"a batch has base offset {base}, expected {offset}")
        offset = base + last_delta + 1
        position += 12 + length
    return offset, position


def batch_is_whole(answer: Buffer, position: int) -> bool:
    """Whether the batch at this position is complete and has the right CRC."""
    length: int = struct.unpack_from(">i", answer, position + 8)[0]
    batch = bytes(answer[position : position + 12 + length])
    return len(batch) == 12 + length and struct.unpack_from(">I", batch, 17)[0] == crc32c(batch[21:])


def create_topic_frame(
    topic: bytes, partitions: int, configs: Mapping[bytes, bytes] = NO_CONFIGS, *, replicas: int = 1
) -> bytearray:
    body = struct.pack(">i", 1) + string(topic) + struct.pack(">ihii", partitions, replicas, 0, len(configs))
    body += b"".join(string(name) + string(value) for name, value in configs.items())
    return frame(CREATE_TOPICS, 2, body + struct.pack(">ib", TIMEOUT_MS, 0))


def read_create_topic_answer(answer: Buffer, topic: bytes) -> int:
    """Returns the error code."""
    code: int = struct.unpack_from(">h", answer, 4 + 4 + 4 + 2 + len(topic))[0]
    return code


def alter_configs_frame(kind: int, name: bytes, configs: Mapping[bytes, bytes]) -> bytearray:
    """Returns an IncrementalAlterConfigs request. `kind`: 2 a topic, 4 a broker; an empty name is all brokers."""
    body = struct.pack(">ib", 1, kind) + string(name) + struct.pack(">i", len(configs))
    body += b"".join(string(key) + b"\0" + string(value) for key, value in configs.items())
    return frame(INCREMENTAL_ALTER_CONFIGS, 0, body + b"\0")


def read_alter_configs_answer(answer: Buffer) -> int:
    """Returns the error code."""
    code: int = struct.unpack_from(">h", answer, 4 + 4 + 4)[0]
    return code


def describe_log_dirs_frame(topic: bytes) -> bytearray:
    """Returns a request for the size of partition 0."""
    return frame(DESCRIBE_LOG_DIRS, 1, struct.pack(">i", 1) + string(topic) + struct.pack(">ii", 1, 0))


def read_describe_log_dirs_answer(answer: Buffer, topic: bytes) -> int:
    """Returns the size of the partition in bytes; 0 if it is in none of the directories."""
    size = 0
    (directories,) = struct.unpack_from(">i", answer, 8)
    position = 12
    for _ in range(directories):
        (length,) = struct.unpack_from(">h", answer, position + 2)
        position += 2 + 2 + length
        (topics,) = struct.unpack_from(">i", answer, position)
        position += 4
        for _ in range(topics):
            position += 2 + len(topic)
            (partitions,) = struct.unpack_from(">i", answer, position)
            position += 4
            for _ in range(partitions):
                size += struct.unpack_from(">q", answer, position + 4)[0]
                position += 4 + 8 + 8 + 1
    return size


def init_producer_frame() -> bytearray:
    return frame(INIT_PRODUCER_ID, 0, struct.pack(">hi", -1, TIMEOUT_MS))


def read_init_producer_answer(answer: Buffer) -> tuple[int, ProducerId]:
    """Returns the error code and the producer id."""
    code, producer_id, epoch = struct.unpack_from(">hqh", answer, 8)
    return code, ProducerId(producer_id, epoch)


def list_offsets_frame(topic: bytes, partitions: Sequence[int]) -> bytearray:
    """Returns a request for the latest offsets of these partitions."""
    body = struct.pack(">ii", -1, 1) + string(topic) + struct.pack(">i", len(partitions))
    return frame(LIST_OFFSETS, 1, body + b"".join(struct.pack(">iq", index, LATEST) for index in partitions))


def read_list_offsets_answer(answer: Buffer, topic: bytes) -> tuple[set[int], dict[int, int]]:
    """Returns the distinct error codes, and partition -> offset."""
    position = 4 + 4 + 2 + len(topic)
    count: int = struct.unpack_from(">i", answer, position)[0]
    rows = [struct.unpack_from(">ihqq", answer, position + 4 + 22 * index) for index in range(count)]
    return {row[1] for row in rows}, {row[0]: row[3] for row in rows}


def metadata_frame(*topics: bytes) -> bytearray:
    """Returns a request for the brokers, the controller and these topics."""
    return frame(METADATA, 1, struct.pack(">i", len(topics)) + b"".join(map(string, topics)))


def read_metadata_answer(answer: Buffer) -> ClusterState:
    """Returns the brokers, the controller, and the partitions of the first topic if one was asked for."""
    (count,) = struct.unpack_from(">i", answer, 4)
    position = 8
    brokers: dict[int, tuple[str, int]] = {}
    for _ in range(count):
        broker_id, length = struct.unpack_from(">ih", answer, position)
        host = bytes(answer[position + 6 : position + 6 + length]).decode()
        port, rack_length = struct.unpack_from(">ih", answer, position + 6 + length)
        brokers[broker_id] = (host, port)
        position += 6 + length + 6 + max(rack_length, 0)
    controller_id, topics = struct.unpack_from(">ii", answer, position)
    if not topics:
        return ClusterState(brokers, controller_id, {})
    (length,) = struct.unpack_from(">h", answer, position + 8 + 2)
    return ClusterState(brokers, controller_id, _read_partitions(answer, position + 8 + 2 + 2 + length + 1))


def _read_partitions(answer: Buffer, position: int) -> dict[int, PartitionState]:
    """Returns partition -> state."""
    (count,) = struct.unpack_from(">i", answer, position)
    position += 4
    partitions = {}
    for _ in range(count):
        code, index, leader, replicas = struct.unpack_from(">hiii", answer, position)
        position += 14 + 4 * replicas
        (in_sync,) = struct.unpack_from(">i", answer, position)
        position += 4 + 4 * in_sync
        partitions[index] = PartitionState(code, leader, in_sync)
    return partitions
