"""The header of a batch: every field, every refusal and its code, restamping in place."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.crc32c import crc32c
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import (
    HEADER_SIZE,
    BatchHeader,
    InvalidBatch,
    iter_headers,
    pack_batch,
    read_header,
    restamp,
    restamp_log_append_time,
    restamp_max_timestamp,
    validate_batch,
    validate_stored_batch,
)
from kbroker.protocol.records import Record, build_batch

INT16 = st.integers(-(1 << 15), (1 << 15) - 1)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def make_batch(count: int = 3) -> bytearray:
    records = [Record(offset, 1000 + offset, b"key", b"value %d" % offset) for offset in range(count)]
    return build_batch(records, producer_id=9, producer_epoch=2, base_sequence=4)


def reseal(batch: bytearray) -> bytearray:
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def patched(layout: str, position: int, value: int) -> bytearray:
    """A batch in which one field lies, with a CRC that agrees."""
    batch = make_batch()
    struct.pack_into(layout, batch, position, value)
    return reseal(batch)


@given(
    st.builds(
        BatchHeader,
        INT64,
        st.just(0),
        INT32,
        st.just(2),
        st.just(0),
        INT16,
        INT32,
        INT64,
        INT64,
        INT64,
        INT16,
        INT32,
        INT32,
    ),
    st.binary(max_size=50),
    st.binary(max_size=7),
)
def test_every_field_comes_back_from_any_position(header: BatchHeader, records: bytes, prefix: bytes) -> None:
    batch = pack_batch(header, records)
    read = read_header(prefix + batch, len(prefix))
    assert read == header._replace(batch_length=HEADER_SIZE - 12 + len(records), crc=crc32c(batch[21:]))
    assert read.size == len(batch)
    assert read.last_offset == header.base_offset + header.last_offset_delta


@pytest.mark.parametrize(
    ("attributes", "name"),
    [
        (0x08, "is_log_append_time"),
        (0x10, "is_transactional"),
        (0x20, "is_control"),
        (0x40, "has_delete_horizon"),
    ],
)
def test_each_attribute_bit_has_one_meaning(attributes: int, name: str) -> None:
    names = ("is_log_append_time", "is_transactional", "is_control", "has_delete_horizon")
    header = read_header(patched(">h", 21, attributes | 3))
    assert [each for each in names if getattr(header, each)] == [name]
    assert header.codec == 3


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("validate", [validate_batch, validate_stored_batch])
def test_a_good_batch_passes_between_other_bytes(
    wrap: Callable[[bytes], bytes], validate: Callable[..., BatchHeader]
) -> None:
    batch = make_batch()
    header = validate(wrap(b"ab" + batch + b"cde"), 2)
    assert header == read_header(batch)
    assert validate(wrap(b"ab" + batch), 2, 2 + len(batch)) == header


CORRUPT, INVALID = ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("layout", "position", "value", "code"),
    [
        (">i", 8, -1, CORRUPT),
        (">i", 8, 0, CORRUPT),
        (">i", 8, 13, CORRUPT),
        (">i", 8, 48, CORRUPT),
        (">i", 8, -(1 << 31), CORRUPT),
        (">i", 8, (1 << 31) - 1, INVALID),
        (">b", 16, 0, INVALID),
        (">b", 16, 1, INVALID),
        (">b", 16, 3, CORRUPT),
        (">b", 16, -1, CORRUPT),
        (">h", 21, 5, INVALID),
        (">h", 21, 7, INVALID),
        (">i", 23, 1, INVALID),
        (">i", 23, -1, INVALID),
        (">i", 23, (1 << 31) - 1, INVALID),
        (">i", 57, 2, INVALID),
        (">i", 57, 4, INVALID),
        (">i", 57, 0, INVALID),
        (">i", 57, -1, INVALID),
        (">i", 57, -(1 << 31), INVALID),
    ],
)
def test_a_lying_field_is_refused_with_kafkas_code(layout: str, position: int, value: int, code: ErrorCode) -> None:
    with pytest.raises(InvalidBatch) as refusal:
        validate_batch(patched(layout, position, value))
    assert refusal.value.code is code


def test_a_count_of_zero_is_refused_even_where_the_offsets_agree() -> None:
    empty = build_batch([], base_offset=0, last_offset_delta=-1)
    with pytest.raises(InvalidBatch):
        validate_batch(empty)


@pytest.mark.parametrize("size", [0, 1, 11, 12, 16, 17, 60, 61, -1])
def test_a_batch_that_is_cut_off_is_no_batch(size: int) -> None:
    batch = make_batch()
    with pytest.raises(InvalidBatch) as refusal:
        validate_batch(batch[:size])
    assert refusal.value.code is INVALID
    with pytest.raises(InvalidBatch):
        validate_batch(batch, 0, size % len(batch))
    with pytest.raises(InvalidBatch):
        validate_batch(batch[:size], 0, len(batch))


@given(st.data())
def test_every_single_bit_flip_is_detected_unless_it_lies_outside_the_crc(data: st.DataObject) -> None:
    batch = make_batch()
    position = data.draw(st.sampled_from([each for each in range(len(batch)) if each >= 16 or 8 <= each < 12]))
    batch[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(InvalidBatch):
        validate_batch(batch)


def test_a_wrong_crc_is_corrupt_before_anything_else_is_believed() -> None:
    batch = patched(">i", 57, 99)
    batch[17] ^= 1
    with pytest.raises(InvalidBatch, match="CRC") as refusal:
        validate_batch(batch)
    assert refusal.value.code is CORRUPT


@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda tail: bytes(make_batch())[:17] + tail), INT16)
def test_arbitrary_bytes_raise_nothing_but_invalid_batch(data: bytes, position: int) -> None:
    position = abs(position) % 64
    for read in (
        lambda: validate_batch(data, position),
        lambda: validate_stored_batch(data, position),
        lambda: read_header(data, position),
        lambda: list(iter_headers(data, position)),
    ):
        with suppress(InvalidBatch):
            read()


def test_a_stored_batch_may_have_lost_records_to_the_cleaner() -> None:
    for kept in ([], [Record(7, 1, b"k", b"v")]):
        batch = build_batch(kept, base_offset=5, last_offset_delta=4)
        assert validate_stored_batch(batch).last_offset == 9
        with pytest.raises(InvalidBatch):
            validate_batch(batch)


@pytest.mark.parametrize(
    ("layout", "position", "value"),
    [(">i", 57, 4), (">i", 57, -1), (">i", 23, -1), (">h", 21, 6), (">q", 0, -1), (">b", 16, 1)],
)
def test_a_stored_batch_may_not_lie(layout: str, position: int, value: int) -> None:
    with pytest.raises(InvalidBatch):
        validate_stored_batch(patched(layout, position, value))


@given(INT64, INT32)
def test_restamping_changes_offset_and_epoch_and_needs_no_new_crc(base_offset: int, leader_epoch: int) -> None:
    before = make_batch()
    buffer = bytearray(b"ab" + before + b"cd")
    restamp(memoryview(buffer), 2, base_offset, leader_epoch)
    expected = read_header(before)._replace(base_offset=base_offset, leader_epoch=leader_epoch)
    assert validate_batch(buffer, 2, len(buffer) - 2) == expected
    assert (bytes(buffer[:2]), bytes(buffer[-2:]), buffer[2 + 16 : -2]) == (b"ab", b"cd", before[16:])


@given(INT64)
def test_restamping_with_log_append_time_sets_type_timestamp_and_crc(timestamp: int) -> None:
    before = make_batch()
    buffer = bytearray(b"ab" + before + b"cd")
    restamp_log_append_time(memoryview(buffer), 2, timestamp)
    header = validate_batch(buffer, 2)
    assert header.is_log_append_time
    old = read_header(before)
    assert header == old._replace(attributes=old.attributes | 8, max_timestamp=timestamp, crc=header.crc)
    assert buffer[2 + HEADER_SIZE : -2] == before[HEADER_SIZE:]


def test_restamping_the_max_timestamp_keeps_the_type() -> None:
    batch = make_batch()
    restamp_max_timestamp(batch, 0, 4242)
    header = validate_batch(batch)
    assert (header.max_timestamp, header.is_log_append_time) == (4242, False)


def test_headers_are_walked_up_to_a_batch_that_is_cut_off() -> None:
    first, second = make_batch(1), make_batch(2)
    buffer = bytes(first + second)
    walked = list(iter_headers(buffer))
    assert [position for position, _ in walked] == [0, len(first)]
    assert [header.record_count for _, header in walked] == [1, 2]
    for cut in (1, 20, len(second) - 12, len(second) - 1):
        assert len(list(iter_headers(buffer[:-cut]))) == 1
        assert len(list(iter_headers(buffer, 0, len(buffer) - cut))) == 1
    assert [header.record_count for _, header in iter_headers(b"xx" + buffer, 2 + len(first))] == [2]


@pytest.mark.parametrize(("layout", "position", "value"), [(">i", 8, 48), (">i", 8, -5), (">b", 16, 1), (">b", 16, 9)])
def test_the_walk_refuses_what_it_cannot_step_over(layout: str, position: int, value: int) -> None:
    with pytest.raises(InvalidBatch):
        list(iter_headers(make_batch() + patched(layout, position, value)))


def test_the_walk_refuses_a_small_message_of_an_older_format_at_its_end() -> None:
    message = struct.pack(">qiIbbii", 0, 14, 0, 0, 0, -1, -1)
    with pytest.raises(InvalidBatch, match="magic is 0 instead of 2"):
        list(iter_headers(make_batch() + message))
