"""Compares the requests of attacks with kbroker's codecs: they decode, and have as many elements as they should."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks import attack_frames as frames
from benchmarks.attacks import make_record_of_zeros
from benchmarks.frames import record_batch
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.headers import REQUEST_HEADER
from kbroker.protocol.legacy_message_set import iter_message_records
from kbroker.protocol.record_batch import read_header
from kbroker.protocol.records import iter_records
from kbroker.protocol.registry import api

NAMES = [b"a-0000000", b"a-0000001", b"a-0000002"]
TEXTS = [name.decode() for name in NAMES]


def decoded(frame: bytes | bytearray) -> Any:
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    key, version = struct.unpack_from(">hh", frame, 4)
    asked = api(key)
    first, last = asked.serves or (0, 0)
    assert first <= version <= last
    view = memoryview(bytes(frame))
    _, position = codec(REQUEST_HEADER, asked.request_header_version(version)).decode(view, 4)
    body, end = codec(asked.request, version).decode(view, position)
    assert end == len(frame)
    return body


@pytest.mark.parametrize(
    ("frame", "elements"),
    [
        (frames.metadata_frame(NAMES, may_create=True), lambda body: [topic.name for topic in body.topics]),
        (frames.describe_configs_frame(2, NAMES), lambda body: [found.resource_name for found in body.resources]),
        (frames.create_topics_frame(NAMES, validate_only=True), lambda body: [topic.name for topic in body.topics]),
        (frames.describe_groups_frame(NAMES), lambda body: body.groups),
        (frames.delete_groups_frame(NAMES), lambda body: body.groups_names),
        (frames.find_coordinators_frame(NAMES), lambda body: body.coordinator_keys),
        (frames.describe_topics_frame(NAMES), lambda body: [topic.name for topic in body.topics]),
        (frames.alter_empty_configs_frame(NAMES), lambda body: [found.resource_name for found in body.resources]),
        (frames.leave_many_frame(b"g", NAMES), lambda body: [member.member_id for member in body.members]),
        (
            frames.quotas_frame(NAMES, remove=False),
            lambda body: [entry.entity[0].entity_name for entry in body.entries if entry.ops],
        ),
        (frames.describe_users_frame(NAMES), lambda body: [user.name for user in body.users]),
        (frames.delete_credentials_frame(NAMES, 0), lambda body: [deletion.name for deletion in body.deletions]),
    ],
)
def test_a_request_names_all_its_resources(frame: bytearray, elements: Callable[[Any], list[str]]) -> None:
    assert elements(decoded(frame)) == TEXTS


def test_unknown_tagged_fields_are_skipped() -> None:
    body = decoded(frames.tagged_frame(1_000))
    assert (body.client_software_name, body.client_software_version) == ("a", "1")


@pytest.mark.parametrize(
    ("frame", "indexes"),
    [
        (
            frames.fetch_offsets_of_many_frame(b"g", b"t", 3),
            lambda body: body.topics[0].partition_indexes,
        ),
        (
            frames.list_many_offsets_frame(b"t", 3),
            lambda body: [found.partition_index for found in body.topics[0].partitions],
        ),
        (
            frames.commit_many_frame(b"g", b"t", 3),
            lambda body: [found.partition_index for found in body.topics[0].partitions],
        ),
        (
            frames.txn_commit_many_frame(b"g", b"t", 3),
            lambda body: [found.partition_index for found in body.topics[0].partitions],
        ),
        (frames.add_partitions_frame(b"t", 3), lambda body: body.v3_and_below_topics[0].partitions),
        (
            frames.fetch_many_frame(b"t", 3, session_epoch=0),
            lambda body: [found.partition for found in body.topics[0].partitions],
        ),
    ],
)
def test_a_request_names_all_its_partitions(frame: bytearray, indexes: Callable[[Any], list[int]]) -> None:
    assert indexes(decoded(frame)) == [0, 1, 2]


def test_producers_of_one_partition_are_asked_for_many_times() -> None:
    (topic,) = decoded(frames.describe_producers_frame(b"t", 5)).topics
    assert (topic.name, topic.partition_indexes) == ("t", [0] * 5)


def test_a_fetch_waits_at_its_offset() -> None:
    body = decoded(frames.parked_fetch_frame(b"t", 7, wait_ms=100))
    assert (body.max_wait_ms, body.min_bytes, body.topics[0].partitions[0].fetch_offset) == (100, 1, 7)


def test_the_only_member_of_a_group_has_large_metadata() -> None:
    assert len(decoded(frames.join_large_frame(b"g", 900)).protocols[0].metadata) == 900
    (assigned,) = decoded(frames.sync_alone_frame(b"g", 1, b"m")).assignments
    assert (assigned.member_id, len(assigned.assignment)) == ("m", 4)


def test_a_member_subscribes_to_a_regular_expression() -> None:
    body = decoded(frames.regex_heartbeat_frame(b"g", b"m", b"a.*"))
    assert (body.member_id, body.member_epoch, body.subscribed_topic_regex, body.topic_partitions) == (
        "m",
        0,
        "a.*",
        [],
    )


def test_batches_hold_as_many_records_as_they_should() -> None:
    assert read_header(frames.claiming_batch()).record_count == 2**31 - 1
    records = list(iter_records(record_batch(300, frames.many_records(300), now_ms=1_000)))
    assert [(record.offset, record.key, record.value) for record in records] == [(n, None, None) for n in range(300)]
    (zeros,) = iter_records(record_batch(1, make_record_of_zeros(1_000), now_ms=1_000))
    assert zeros.value == bytes(1_000)


def test_messages_are_in_one_compressed_message() -> None:
    messages = frames.many_messages(300)
    assert bytes(decoded(frames.produce_messages_frame(b"t", messages)).topic_data[0].partition_data[0].records) == (
        messages
    )
    assert [record.offset for record in iter_message_records(messages)] == list(range(300))
