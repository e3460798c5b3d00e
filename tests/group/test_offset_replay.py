"""Whole batches of offsets come out as if each record had been replayed alone, whatever is between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.group.hard_state import HardState
from kbroker.group.offset_replay import OffsetReplay
from kbroker.group.records import StoredGroup, UnreadableRecord, group_record, offset_record, offset_tombstone
from kbroker.protocol.compression import Codec
from kbroker.protocol.keyed_batch import KeyAndValue
from kbroker.protocol.record_batch import HEADER_SIZE, InvalidBatch, read_header
from kbroker.protocol.records import Record, build_batch

GROUPS = st.sampled_from(["g", "group-2", "ö" * 40])
TOPICS = st.sampled_from(["t", "a-longer-topic", "x" * 200])
INT64 = st.integers(0, 2**63 - 1)

plain = st.builds(
    lambda group, topic, partition, offset, epoch, timestamp: offset_record(
        group, topic, partition, (offset, epoch, "", timestamp, -1)
    ),
    GROUPS,
    TOPICS,
    st.integers(0, 3),
    INT64,
    st.integers(-1, 9),
    INT64,
)
noted = st.builds(
    lambda group, note, expiry: offset_record(group, "t", 1, (5, 1, note, 6, expiry)),
    GROUPS,
    st.text(max_size=90),
    st.sampled_from([-1, 99]),
)
tombstone = st.builds(offset_tombstone, GROUPS, TOPICS, st.integers(0, 3))
of_group = st.builds(
    lambda group, generation: group_record(group, StoredGroup("consumer", generation)), GROUPS, st.integers(0, 9)
)
legacy = plain.map(lambda record: (b"\0\0" + record[0][2:], record[1]))
with_more = plain.map(lambda record: (record[0] + b"more", record[1]))
garbage = st.tuples(st.binary(max_size=20), st.binary(max_size=30))
odd_value = st.tuples(plain.map(lambda record: record[0]), st.binary(min_size=24, max_size=24))
record_lists = st.lists(
    plain | plain | plain | noted | tombstone | of_group | legacy | with_more | garbage | odd_value, max_size=40
)


def batch_of(records: list[KeyAndValue], *, codec: int = Codec.NONE, step_ms: int = 0) -> bytes:
    rows = [Record(index, 1_000 + index * step_ms, key, value) for index, (key, value) in enumerate(records)]
    return bytes(build_batch(rows, codec=codec))


def replayed(*batches: bytes) -> tuple[HardState, int]:
    hard, unreadable = HardState(), list[Exception]()
    replay = OffsetReplay(hard, unreadable.append)
    for batch in batches:
        data = b"before" + batch + b"after"
        for _ in replay.replay_batch(data, 6, read_header(data, 6)):
            pass
    return hard, len(unreadable)


def one_by_one(records: list[KeyAndValue]) -> tuple[HardState, int]:
    hard, unreadable = HardState(), 0
    for key, value in records:
        try:
            hard.replay(key, value)
        except UnreadableRecord:
            unreadable += 1
    return hard, unreadable


@given(st.lists(record_lists.filter(bool), max_size=4), st.sampled_from([0, 1, 300, 10**9]))
def test_batches_leave_what_their_records_leave_one_by_one(batches: list[list[KeyAndValue]], step_ms: int) -> None:
    found = replayed(*(batch_of(batch, step_ms=step_ms) for batch in batches))
    assert found == one_by_one([record for batch in batches for record in batch])


@given(record_lists.filter(bool))
def test_compressed_batches_do_as_well(records: list[KeyAndValue]) -> None:
    assert replayed(batch_of(records, codec=Codec.GZIP)) == one_by_one(records)


def test_a_group_whose_last_offset_went_may_come_back_in_the_same_log() -> None:
    commit = offset_record("g", "t", 0, (1, -1, "", 2, -1))
    batches = [batch_of([commit]), batch_of([offset_tombstone("g", "t", 0)]), batch_of([commit])]
    assert replayed(*batches[:2])[0].offsets == {}
    assert replayed(*batches)[0].offsets == {"g": {("t", 0): (1, -1, "", 2, -1)}}


def test_groups_that_read_the_same_topic_share_its_keys() -> None:
    hard, _ = replayed(batch_of([offset_record(group, "t", 7, (1, -1, "", 2, -1)) for group in "ab"]))
    (first,), (second,) = hard.offsets["a"], hard.offsets["b"]
    assert first is second


def test_others_get_a_turn_within_a_large_batch() -> None:
    records = [offset_record("g", "t", index, (1, -1, "", 2, -1)) for index in range(1000)]
    batch = batch_of(records)
    replay = OffsetReplay(HardState(), lambda problem: None)
    assert sum(1 for _ in replay.replay_batch(batch, 0, read_header(batch))) >= 15


@given(st.data())
def test_a_batch_that_was_damaged_does_no_more_than_be_refused(data: st.DataObject) -> None:
    batch = bytearray(batch_of([offset_record("g", "t", index, (1, -1, "", 2, -1)) for index in range(3)]))
    batch[data.draw(st.integers(HEADER_SIZE, len(batch) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        hard, _ = replayed(bytes(batch))
    except InvalidBatch:
        return
    assert sum(map(len, hard.offsets.values())) <= 3


def test_a_batch_that_ends_early_is_refused_after_what_was_there() -> None:
    batch = bytearray(batch_of([offset_record("g", "t", index, (1, -1, "", 2, -1)) for index in range(3)]))
    batch[57:61] = (4).to_bytes(4, "big")  # four records, it says
    hard = HardState()
    replay = OffsetReplay(hard, lambda problem: None)
    with pytest.raises(InvalidBatch):
        list(replay.replay_batch(bytes(batch), 0, read_header(batch)))
    assert len(hard.offsets["g"]) == 3
