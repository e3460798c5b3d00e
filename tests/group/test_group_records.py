"""What groups write is what Kafka's schemas say, and everything that Kafka wrote before is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.group.hard_state import HardState
from kbroker.group.records import (
    NO_TIMESTAMP,
    StoredGroup,
    StoredMember,
    UnreadableRecord,
    group_record,
    group_tombstone,
    offset_record,
    offset_tombstone,
    read_group_key,
    read_group_value,
    read_offset_key,
    read_offset_value,
)
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.group_records import (
    GROUP_METADATA_KEY,
    GROUP_METADATA_VALUE,
    LEGACY_OFFSET_COMMIT_KEY,
    OFFSET_COMMIT_KEY,
    OFFSET_COMMIT_VALUE,
    MemberMetadata,
)

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
timestamps = st.integers(0, (1 << 63) - 1)


def prefixed(number: int, data: bytes) -> bytes:
    return number.to_bytes(2, "big") + data


@given(names, names, int32, int64, int32, names, timestamps)
def test_an_offset_is_written_as_the_schema_says(
    group: str, topic: str, partition: int, offset: int, epoch: int, metadata: str, timestamp: int
) -> None:
    committed = (offset, epoch, metadata, timestamp, NO_TIMESTAMP)
    key, value = offset_record(group, topic, partition, committed)
    expected_key = OFFSET_COMMIT_KEY(group=group, topic=topic, partition=partition)
    expected = OFFSET_COMMIT_VALUE(offset=offset, leader_epoch=epoch, metadata=metadata, commit_timestamp=timestamp)
    assert key == prefixed(1, codec(OFFSET_COMMIT_KEY, 0).to_bytes(expected_key))
    assert value == prefixed(3, codec(OFFSET_COMMIT_VALUE, 3).to_bytes(expected))
    assert read_offset_key(key) == (group, topic, partition)
    assert read_offset_value(value) == committed
    assert offset_tombstone(group, topic, partition) == (key, None)


@given(names, int64, timestamps, timestamps)
def test_an_offset_with_an_expiry_is_written_in_version_1(
    metadata: str, offset: int, timestamp: int, expiry: int
) -> None:
    _, value = offset_record("g", "t", 0, (offset, 5, metadata, timestamp, expiry))
    expected = OFFSET_COMMIT_VALUE(
        offset=offset, metadata=metadata, commit_timestamp=timestamp, expire_timestamp=expiry
    )
    assert value == prefixed(1, codec(OFFSET_COMMIT_VALUE, 1).to_bytes(expected))
    assert read_offset_value(value) == (offset, -1, metadata, timestamp, expiry)


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_an_offset_is_read(version: int) -> None:
    written = OFFSET_COMMIT_VALUE(offset=9, leader_epoch=4, metadata="m", commit_timestamp=7, expire_timestamp=8)
    value = prefixed(version, codec(OFFSET_COMMIT_VALUE, version).to_bytes(written))
    epoch = 4 if version >= 3 else -1
    assert read_offset_value(value) == (9, epoch, "m", 7, 8 if version == 1 else -1)


def test_offsets_under_the_old_type_of_key_are_read() -> None:
    legacy = LEGACY_OFFSET_COMMIT_KEY(group="g", topic="t", partition=3)
    key = prefixed(0, codec(LEGACY_OFFSET_COMMIT_KEY, 0).to_bytes(legacy))
    _, value = offset_record("g", "t", 3, (1, 1, "", 1, NO_TIMESTAMP))
    state = HardState()
    state.replay(key, value)
    assert state.offsets == {"g": {("t", 3): (1, 1, "", 1, NO_TIMESTAMP)}}


MEMBER = StoredMember("m", "i", "c", "/h", 60_000, 10_000, b"subscription", b"assignment")
GROUP = StoredGroup("consumer", 7, "range", "m", 123, (MEMBER, MEMBER._replace(member_id="n", instance_id=None)))


@pytest.mark.parametrize("group", [GROUP, StoredGroup(), StoredGroup("consumer", 8, None, None, 5)])
def test_a_group_comes_back_as_it_was_written(group: StoredGroup) -> None:
    key, value = group_record("g", group)
    assert value is not None
    assert value[:2] == b"\0\3"
    assert key == prefixed(2, codec(GROUP_METADATA_KEY, 0).to_bytes(GROUP_METADATA_KEY(group="g")))
    assert (read_group_key(key), read_group_value(value)) == ("g", group)
    assert group_tombstone("g") == (key, None)


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_group_is_read(version: int) -> None:
    member = MemberMetadata(
        member_id="m",
        group_instance_id="i",
        client_id="c",
        client_host="/h",
        rebalance_timeout=60_000,
        session_timeout=10_000,
        subscription=b"subscription",
        assignment=b"assignment",
    )
    written = GROUP_METADATA_VALUE(
        protocol_type="consumer",
        generation=7,
        protocol="range",
        leader="m",
        current_state_timestamp=123,
        members=[member],
    )
    group = read_group_value(prefixed(version, codec(GROUP_METADATA_VALUE, version).to_bytes(written)))
    assert group.state_timestamp == (123 if version >= 2 else -1)
    (found,) = group.members
    assert found.instance_id == ("i" if version >= 3 else None)
    assert found.rebalance_timeout_ms == (60_000 if version >= 1 else 10_000)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_record_are_unreadable_and_change_nothing(data: bytes) -> None:
    state = HardState()
    for key in (prefixed(1, data), prefixed(2, data), data):
        for value in (data, prefixed(3, data), prefixed(99, data)):
            before = (dict(state.groups), {group: dict(each) for group, each in state.offsets.items()})
            try:
                state.replay(key, value)
            except UnreadableRecord:
                assert (state.groups, state.offsets) == before


def test_a_version_from_the_future_is_unreadable() -> None:
    with pytest.raises(UnreadableRecord):
        read_offset_value(prefixed(5, bytes(40)))
    with pytest.raises(UnreadableRecord):
        read_group_value(prefixed(5, bytes(40)))


def test_records_of_other_types_are_passed_over() -> None:
    state = HardState()
    for kind in (4, 9, 11, 17, 99):
        state.replay(prefixed(kind, b"\0\1g"), prefixed(0, b"\0\0\0\1\0"))
    assert state == HardState()
