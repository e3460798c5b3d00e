"""Attacks by hostile clients on a broker. Each has a preparation and an onslaught; only the onslaught is measured.

A new attack is one entry in `ATTACKS`. An attack may end with an error response or a closed connection: the broker
decides how it defends itself.
"""

from __future__ import annotations

import contextlib
import struct
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from benchmarks import attack_frames as frames
from benchmarks.connection import Address, Connection, call
from benchmarks.encoding import Buffer, varint
from benchmarks.frames import ProducerId, make_records, produce_frame, record_batch
from benchmarks.group_frames import find_coordinator_frame, read_find_coordinator_answer
from benchmarks.open_files import allow_open_files
from benchmarks.topics import create_topic, wait_or_raise
from kbroker.protocol.compression import Codec, compress

__all__ = ["ATTACKS", "Attack", "Onslaught", "repeat"]

Onslaught = Callable[[], int]
"""Returns the number of bytes that it got back."""
MB = 1 << 20
VERSION = 7
TOPIC = b"hostile"
GROUP_METADATA_BYTES = 900_000
FETCHES_PER_CONNECTION = 1_000
PARKED_MS = 120_000
REQUESTS_AT_ONCE = 100
COORDINATOR_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Attack:
    """`prepare(address, count)` returns the onslaught. `quick`: the count of a short trial run."""

    name: str
    prepare: Callable[[Address, int], Onslaught]
    count: int
    quick: int


def repeat(build: Callable[[int], Buffer], times: int = 1) -> Callable[[Address, int], Onslaught]:
    """Returns an attack that sends one request so many times, on one connection, and reads each response."""

    def prepare(address: Address, count: int) -> Onslaught:
        return partial(ask, address, [build(count)] * times)

    return prepare


def ask(address: Address, requests: Sequence[Buffer], in_flight: int = 1) -> int:
    """Returns the size of all responses. The broker may close the connection before the last one."""
    size = 0
    with Connection(address) as connection, contextlib.suppress(EOFError, ConnectionError):
        for start in range(0, len(requests), in_flight):
            some = requests[start : start + in_flight]
            connection.send(b"".join(some))
            for _ in some:
                size += len(connection.answer())
    return size


def announce(address: Address, count: int) -> Onslaught:
    def attack() -> int:
        with ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(Connection(address)).send(frames.announcement(100 * MB))
            # A Produce of another new client, which needs memory for its frame.
            return len(call(address, _produce(TOPIC, record_batch(100, make_records(100, 200), now_ms=1_000))))

    ensure_topic(address)
    return attack


def describe_large_group(address: Address, count: int) -> Onslaught:
    group = b"large-%s" % uuid.uuid4().hex.encode()
    wait_for_coordinator(address, group)
    joined = call(address, frames.join_large_frame(group, GROUP_METADATA_BYTES))
    code, generation = struct.unpack_from(">hi", joined, 4)
    position = 10
    for _ in range(2):  # protocol, leader
        position += 2 + struct.unpack_from(">h", joined, position)[0]
    (size,) = struct.unpack_from(">h", joined, position)
    member = joined[position + 2 : position + 2 + size]
    if not code:
        call(address, frames.sync_alone_frame(group, generation, member))
    return partial(ask, address, [frames.describe_groups_frame([group] * count)])


def describe_producers(address: Address, count: int) -> Onslaught:
    topic = create_topic(address, b"producers-%s" % uuid.uuid4().hex.encode()).name
    records = make_records(1, 1)
    first = 1 << 40  # far from ids that the broker gives out
    batches = (
        record_batch(1, records, now_ms=1_000, producer=ProducerId(first + number, 0), sequence=0)
        for number in range(count)
    )
    ask(address, [_produce(topic, batch) for batch in batches], in_flight=REQUESTS_AT_ONCE)
    return partial(ask, address, [frames.describe_producers_frame(topic, 20)])


def fill_sessions(address: Address, count: int) -> Onslaught:
    request = frames.fetch_many_frame(TOPIC, count, session_epoch=0)

    def attack() -> int:
        return sum(ask(address, [request]) for _ in range(8))

    return attack


def claim_records(address: Address, count: int) -> Onslaught:
    ensure_topic(address)
    return partial(ask, address, [_produce(TOPIC, frames.claiming_batch())] * count, REQUESTS_AT_ONCE)


def convert_messages(address: Address, count: int) -> Onslaught:
    ensure_topic(address)
    return partial(ask, address, [frames.produce_messages_frame(TOPIC, frames.many_messages(count))])


def compress_anew(address: Address, count: int) -> Onslaught:
    topic = create_topic(address, b"forced-%s" % uuid.uuid4().hex.encode(), configs={b"compression.type": b"lz4"}).name
    records = compress(Codec.GZIP, frames.many_records(count))
    return partial(ask, address, [_produce(topic, record_batch(count, records, now_ms=1_000, codec=Codec.GZIP))])


def send_bombs(address: Address, count: int) -> Onslaught:
    ensure_topic(address)
    zeros = compress(Codec.ZSTD, make_record_of_zeros(100 * MB))
    return partial(ask, address, [_produce(TOPIC, record_batch(1, zeros, now_ms=1_000, codec=Codec.ZSTD))] * count)


def make_record_of_zeros(size: int) -> bytes:
    head = b"\0\0\0\1"  # attributes, deltas, no key
    length = varint(size)
    return varint(len(head) + len(length) + size + 1) + head + length + bytes(size) + b"\0"


def park_fetches(address: Address, count: int, *, is_woken: bool) -> Onslaught:
    topic = create_topic(address, b"parked-%s" % uuid.uuid4().hex.encode()).name
    request = frames.parked_fetch_frame(topic, 0, wait_ms=PARKED_MS)
    connections = max(1, count // FETCHES_PER_CONNECTION)
    allow_open_files(connections + 200)

    def attack() -> int:
        size = 0
        with ExitStack() as stack:
            parked = [stack.enter_context(Connection(address)) for _ in range(connections)]
            for connection in parked:
                connection.send(bytes(request) * min(count, FETCHES_PER_CONNECTION))
            if is_woken:
                call(address, _produce(topic, record_batch(1, make_records(1, 10), now_ms=1_000)))
                for connection in parked:
                    for _ in range(min(count, FETCHES_PER_CONNECTION)):
                        size += len(connection.answer())
        return size

    return attack


def set_quotas(address: Address, count: int) -> Onslaught:
    users = frames.names(b"user", count)
    requests = [
        frames.quotas_frame(users, remove=False),
        *[frames.quotas_frame([user], remove=True) for user in users],
    ]
    return partial(ask, address, requests)


def subscribe_by_regex(address: Address, count: int) -> Onslaught:
    group = b"regex-%s" % uuid.uuid4().hex.encode()
    wait_for_coordinator(address, group)
    members = [uuid.uuid4().hex.encode() for _ in range(count)]
    requests = [
        frames.regex_heartbeat_frame(group, member, b"(a|b|%d).*(x|y)?-%d[0-9]*" % (number, number))
        for number, member in enumerate(members)
    ]
    return partial(ask, address, requests, REQUESTS_AT_ONCE)


def wait_for_coordinator(address: Address, group: bytes) -> None:
    """Waits until the topic of groups exists, too."""
    deadline = time.monotonic() + COORDINATOR_SECONDS
    while code := read_find_coordinator_answer(call(address, find_coordinator_frame(group))):
        wait_or_raise("FindCoordinator", {code}, deadline)


def ensure_topic(address: Address) -> None:
    call(address, frames.create_topics_frame([TOPIC], validate_only=False))


def _produce(topic: bytes, batch: bytes) -> Buffer:
    return produce_frame(version=VERSION, topic=topic, batch=batch, acks=1)[0]


def _of_names(build: Callable[[Sequence[bytes]], Buffer], prefix: bytes = b"n") -> Callable[[int], Buffer]:
    return lambda count: build(frames.names(prefix, count))


def _of_partitions(build: Callable[[bytes, int], Buffer]) -> Callable[[int], Buffer]:
    return partial(build, TOPIC)


def _of_group(build: Callable[[bytes, bytes, int], Buffer]) -> Callable[[int], Buffer]:
    return partial(build, b"hostile-group", TOPIC)


def _topic_again(count: int) -> Buffer:
    return frames.describe_configs_frame(frames.CONFIG_TOPIC, [TOPIC] * count)


def _after_topic(prepare: Callable[[Address, int], Onslaught]) -> Callable[[Address, int], Onslaught]:
    def both(address: Address, count: int) -> Onslaught:
        ensure_topic(address)
        return prepare(address, count)

    return both


def _million(name: str, build: Callable[[int], Buffer]) -> Attack:
    return Attack(f"{name} with 1,000,000 entries", repeat(build), 1_000_000, 20_000)


ATTACKS: Iterable[Attack] = (
    Attack("3 connections announce 100 MB", announce, 3, 3),
    Attack("30 connections announce 100 MB", announce, 30, 30),
    _million("Metadata", _of_names(partial(frames.metadata_frame, may_create=False))),
    _million("Metadata, creating topics,", _of_names(partial(frames.metadata_frame, may_create=True), b"created")),
    Attack("DescribeConfigs of one topic 100,000 times", _after_topic(repeat(_topic_again)), 100_000, 2_000),
    Attack(
        "CreateTopics of 100,000, validate only",
        repeat(_of_names(partial(frames.create_topics_frame, validate_only=True))),
        100_000,
        2_000,
    ),
    Attack("DescribeGroups 1,000 times of 900 KB", describe_large_group, 1_000, 100),
    Attack("DescribeProducers 20 times of 200,000", describe_producers, 200_000, 2_000),
    _million("Fetch", lambda count: frames.fetch_many_frame(TOPIC, count, session_epoch=-1)),
    Attack("8 fetch sessions of 500,000 partitions", fill_sessions, 500_000, 10_000),
    _million("FindCoordinator", _of_names(frames.find_coordinators_frame)),
    _million("DescribeGroups", _of_names(frames.describe_groups_frame)),
    _million("DeleteGroups", _of_names(frames.delete_groups_frame)),
    _million("OffsetFetch", _of_group(frames.fetch_offsets_of_many_frame)),
    _million("ListOffsets", _of_partitions(frames.list_many_offsets_frame)),
    _million("AlterConfigs", _of_names(frames.alter_empty_configs_frame)),
    _million("DescribeTopicPartitions", _of_names(frames.describe_topics_frame)),
    _million("OffsetCommit", _of_group(frames.commit_many_frame)),
    _million("TxnOffsetCommit", _of_group(frames.txn_commit_many_frame)),
    _million("AddPartitionsToTxn", _of_partitions(frames.add_partitions_frame)),
    _million("LeaveGroup", _of_names(partial(frames.leave_many_frame, b"hostile-group"))),
    Attack("24,000 batches that claim 2^31 - 1 records", claim_records, 24_000, 1_000),
    Attack("2,000,000 compressed messages of magic 1", convert_messages, 2_000_000, 20_000),
    Attack("1,200,000 records with another codec", compress_anew, 1_200_000, 20_000),
    Attack("10 batches of 100 MB of zeros, zstd", send_bombs, 10, 1),
    Attack("100,000 waiting fetches, dropped", partial(park_fetches, is_woken=False), 100_000, 2_000),
    Attack("100,000 waiting fetches, woken by one Produce", partial(park_fetches, is_woken=True), 100_000, 2_000),
    Attack("quotas for 3,000 users", set_quotas, 3_000, 100),
    Attack(
        "credentials of 29,000 users, all refused",
        repeat(_of_names(partial(frames.delete_credentials_frame, mechanism=0))),
        29_000,
        2_000,
    ),
    Attack(
        "credentials of 29,000 unknown users, described", repeat(_of_names(frames.describe_users_frame)), 29_000, 2_000
    ),
    Attack("100 requests with 120,000 tagged fields", repeat(frames.tagged_frame, 100), 120_000, 2_000),
    Attack("1,500 regular expressions in one group", subscribe_by_regex, 1_500, 50),
)
