"""The records of consumer groups: read back what was written, and byte for byte what Kafka writes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.group.consumer import consumer_records as records
from kbroker.group.consumer.consumer_records import ClassicSide, ConsumerMember, CurrentAssignment, ResolvedPattern
from kbroker.group.hard_state import HardState
from kbroker.group.records import StoredGroup, UnreadableRecord, group_record
from kbroker.protocol.keyed_batch import KeyAndValue
from tests.group.consumers import ConsumerWorld, topic_id

TOPIC = topic_id("t")
MEMBER = ConsumerMember(
    "instance", "rack", "client", "/host", ("a", "b"), "x.*", 300, "range", ClassicSide(10, (("range", b"\0\1"),))
)
ASSIGNED = {TOPIC: frozenset([0, 5]), topic_id("u"): frozenset([1])}
CURRENT = CurrentAssignment(4, 3, records.UNREVOKED, ASSIGNED, {TOPIC: frozenset([7])})

WRITTEN: list[tuple[int, str, KeyAndValue, Any]] = [
    (records.GROUP, "", records.epoch_record("g", epoch=7, metadata_hash=-5), (7, -5)),
    (records.MEMBER, "m", records.member_record("g", "m", MEMBER), MEMBER),
    (records.MEMBER, "m", records.member_record("g", "m", MEMBER._replace(classic=None, instance_id=None)), None),
    (records.TARGET_EPOCH, "", records.target_epoch_record("g", 9), 9),
    (records.TARGET_MEMBER, "m", records.target_member_record("g", "m", ASSIGNED), ASSIGNED),
    (records.CURRENT_ASSIGNMENT, "m", records.current_assignment_record("g", "m", CURRENT), CURRENT),
    (
        records.REGULAR_EXPRESSION,
        "x.*",
        records.regular_expression_record("g", "x.*", ResolvedPattern(frozenset(["a"]), 3, 99)),
        ResolvedPattern(frozenset(["a"]), 3, 99),
    ),
]


@pytest.mark.parametrize(("kind", "second", "record", "expected"), WRITTEN)
def test_what_is_written_is_read_again(kind: int, second: str, record: KeyAndValue, expected: Any) -> None:
    key, value = record
    assert value is not None
    assert int.from_bytes(key[:2], "big") == kind
    assert records.read_key(key) == ("g", second)
    read = records.read_value(kind, value)
    assert read == (MEMBER._replace(classic=None, instance_id=None) if expected is None else expected)


def test_the_bytes_are_kafkas() -> None:
    """As its serializer writes them: versions, compact lengths, no tags but the hash."""
    key, value = records.epoch_record("g", epoch=7, metadata_hash=1)
    assert key.hex() == "0003000167"
    assert value is not None
    assert value.hex() == "0000" + "00000007" + "01" + "0008" + "0000000000000001"
    # Taken from a log of Kafka 4.1.
    _, value = records.member_record("g", "s1", ConsumerMember("i", None, "wire", "/h", ("t",), "", 60_000, None))
    assert value is not None
    assert (
        value.hex()
        == "0000" + "0269" + "00" + "0577697265" + "032f68" + "020274" + "01" + "0000ea60" + "00" + "01000100"
    )
    key, value = records.target_member_record("g", "m", {TOPIC: frozenset([2, 1])})
    assert key.hex() == "0007" + "000167" + "00016d"
    assert value is not None
    assert value.hex() == "0000" + "02" + TOPIC.hex() + "03" + "00000001" + "00000002" + "00" + "00"
    _, value = records.current_assignment_record("g", "m", CurrentAssignment(2, 1, 0))
    assert value is not None
    assert value.hex() == "0000" + "00000002" + "00000001" + "00" + "01" + "01" + "00"


@given(st.sampled_from([3, 5, 6, 7, 8, 16]), st.binary(max_size=60))
def test_bytes_that_are_no_record_are_unreadable_and_change_nothing(kind: int, data: bytes) -> None:
    state = HardState()
    for key in (kind.to_bytes(2, "big") + data, records.tombstone(kind, "g", "m")[0]):
        for value in (data, b"\0\0" + data, b"\0\x63" + data):
            before = {group_id: group.copy() for group_id, group in state.consumer_groups.items()}
            try:
                state.replay(key, value)
            except UnreadableRecord:
                assert state.consumer_groups == before


def test_a_tombstone_for_what_is_not_there_does_not_make_a_group() -> None:
    state = HardState()
    for kind in (3, 5, 6, 7, 8, 16):
        state.replay(records.tombstone(kind, "g", "m")[0], None)
    assert state == HardState()


def test_a_group_is_of_the_protocol_of_its_last_record() -> None:
    world = ConsumerWorld()
    world.join_consumer("a")
    stored = world.shard.hard
    key, value = group_record("group", StoredGroup("consumer", 3, "range"))
    stored.replay(key, value)
    assert (list(stored.groups), stored.consumer_groups) == (["group"], {})
    stored.replay(*records.epoch_record("group", epoch=1, metadata_hash=0))
    assert (stored.groups, list(stored.consumer_groups)) == ({}, ["group"])
