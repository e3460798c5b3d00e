from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.log.producers.producer_snapshot import CorruptSnapshot, decode_snapshot, encode_snapshot
from kbroker.log.producers.producer_state import (
    MAX_SEQUENCE,
    BatchTrace,
    ProducerEntry,
    ProducerState,
    increment_sequence,
)
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import BatchHeader, read_header
from tests.log.batches import make_batch, make_marker


def header(sequence: int, count: int = 1, *, epoch: int = 0, transactional: bool = False) -> BatchHeader:
    batch = make_batch(*[b"v"] * count, producer_id=9, epoch=epoch, sequence=sequence, transactional=transactional)
    return read_header(batch)


def state_after(*sequences: tuple[int, int], epoch: int = 0) -> ProducerState:
    state = ProducerState()
    offset = 100
    for sequence, count in sequences:
        found = header(sequence, count, epoch=epoch)
        assert state.check(found) is None
        state.update(found, offset)
        offset += count
    return state


def unstable(state: ProducerState) -> int | None:
    return state.first_unstable_offset


def test_a_producer_without_state_may_start_anywhere() -> None:
    assert ProducerState().check(header(77)) is None


def test_the_next_sequence_is_accepted_and_a_gap_is_not() -> None:
    state = state_after((0, 3))
    assert state.check(header(3)) is None
    assert state.check(header(4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_retry_of_one_of_the_last_five_batches_gets_its_old_offset() -> None:
    state = state_after(*[(number, 1) for number in range(6)])
    for number in range(1, 6):
        found = state.check(header(number))
        assert isinstance(found, BatchTrace)
        assert (found.base_offset, found.last_offset) == (100 + number, 100 + number)
    assert state.check(header(0)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_retry_must_have_the_same_last_sequence() -> None:
    assert state_after((0, 3), (3, 1)).check(header(0, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap_after_the_largest_int32() -> None:
    state = ProducerState()
    state.update(header(MAX_SEQUENCE - 1, 2), 0)
    assert state.check(header(0)) is None
    state = ProducerState()
    state.update(header(MAX_SEQUENCE, 3), 0)
    assert state.entries[9].last_sequence == 1
    assert state.check(header(2)) is None
    assert increment_sequence(MAX_SEQUENCE, 1) == 0


def test_an_older_epoch_is_fenced_and_a_newer_one_starts_at_zero() -> None:
    state = state_after((0, 1), epoch=3)
    assert state.check(header(1, epoch=2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert state.check(header(1, epoch=4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check(header(0, epoch=4)) is None
    state.update(header(0, epoch=4), 200)
    assert [trace.base_offset for trace in state.entries[9].batches] == [200]


def test_an_undone_update_leaves_no_trace() -> None:
    state = state_after((0, 1))
    before = dict(state.entries)
    old = state.update(header(1, transactional=True), 101)
    assert unstable(state) == 101
    state.restore(9, old)
    assert state.entries == before
    assert unstable(state) is None
    fresh = ProducerState()
    fresh.restore(9, fresh.update(header(0), 0))
    assert fresh.entries == {}


def test_inactive_producers_expire_unless_a_transaction_is_open() -> None:
    state = state_after((0, 1))
    timestamp = state.entries[9].timestamp
    state.expire(now_ms=timestamp + 999, expiration_ms=1000)
    assert 9 in state.entries
    state.expire(now_ms=timestamp + 1000, expiration_ms=1000)
    assert state.entries == {}
    state.update(header(0, transactional=True), 100)
    state.expire(now_ms=timestamp + 1000, expiration_ms=1000)
    assert 9 in state.entries


def test_an_open_transaction_holds_the_stable_offset_until_its_marker_is_replicated() -> None:
    state = ProducerState()
    state.update(header(0, transactional=True), 100)
    state.update(header(1, transactional=True), 101)
    assert unstable(state) == 100
    assert state.check(header(2)) == ErrorCode.INVALID_TXN_STATE
    marker = read_header(make_marker(9, commit=True))
    completed = state.end_transaction(marker, offset=102, coordinator_epoch=0, is_abort=False)
    assert completed == (9, 100, 102, False)
    assert unstable(state) == 100
    state.on_high_watermark(102)
    assert unstable(state) == 100
    state.on_high_watermark(103)
    assert unstable(state) is None


def test_a_marker_without_data_completes_nothing_but_keeps_the_epochs() -> None:
    state = ProducerState()
    marker = read_header(make_marker(9, epoch=4, commit=False))
    assert state.end_transaction(marker, offset=5, coordinator_epoch=2, is_abort=True) is None
    assert state.check_marker(9, producer_epoch=3, coordinator_epoch=2) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert state.check_marker(9, producer_epoch=4, coordinator_epoch=1) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert state.check_marker(9, producer_epoch=4, coordinator_epoch=2) is None
    assert state.check(header(1, epoch=4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check(header(0, epoch=4)) is None


entries = st.builds(
    lambda epoch, sequence, delta, offset, timestamp, coordinator, txn: ProducerEntry(
        epoch,
        (BatchTrace((sequence - delta) & MAX_SEQUENCE, sequence, offset, offset + delta, timestamp),),
        timestamp,
        coordinator,
        txn,
    ),
    st.integers(0, 32767),
    st.integers(0, MAX_SEQUENCE),
    st.integers(0, 1000),
    st.integers(0, 1 << 40),
    st.integers(-1, 1 << 45),
    st.integers(-1, 1000),
    st.integers(-1, 1 << 40),
)


@given(st.dictionaries(st.integers(0, 1 << 62), entries, max_size=4))
def test_a_snapshot_keeps_the_last_batch_of_every_producer(state: dict[int, ProducerEntry]) -> None:
    assert dict(decode_snapshot(encode_snapshot(state))) == state


def test_a_snapshot_of_a_producer_without_batches() -> None:
    state = {4: ProducerEntry(2, (), 17, 3, -1)}
    assert dict(decode_snapshot(encode_snapshot(state))) == state


def test_a_damaged_snapshot_is_recognised() -> None:
    content = encode_snapshot(state_after((0, 1)).entries)
    for damaged in (b"", content[:-1], content[:-1] + b"\xee", b"\0\2" + content[2:], content + b"\0"):
        with pytest.raises(CorruptSnapshot):
            decode_snapshot(damaged)
