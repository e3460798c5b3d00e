"""The walk over records reads and rejects the same bytes as the plain parser, on valid and on changed bytes."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kbroker.protocol.record_batch import HEADER_SIZE, BatchHeader, InvalidBatch, read_header
from kbroker.protocol.record_walk import Header, RecordCursor, RecordsCheck
from kbroker.protocol.records import Record, build_batch, iter_records
from tests.protocol.plain_records import parse_plainly

CONTENT = st.none() | st.binary(max_size=300)
RECORDS = st.lists(
    st.builds(
        Record,
        offset=st.integers(0, 20_000),
        timestamp=st.integers(-(1 << 62), 1 << 62),
        key=CONTENT,
        value=CONTENT,
        headers=st.lists(st.tuples(st.text(max_size=5), CONTENT), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=8,
).map(lambda records: sorted(records, key=lambda record: record.offset))


@st.composite
def changed(draw: st.DrawFn) -> tuple[BatchHeader, bytes]:
    """Draws records with some bytes changed, cut or added."""
    batch = build_batch(draw(RECORDS))
    data = bytearray(batch[HEADER_SIZE:])
    for _ in range(draw(st.integers(0, 3))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    cut = draw(st.integers(0, len(data)) | st.just(len(data)))
    return read_header(batch), bytes(data[:cut]) + draw(st.just(b"") | st.binary(max_size=12))


def plain(header: BatchHeader, data: bytes) -> list[Record] | None:
    try:
        return list(parse_plainly(data, header))
    except (IndexError, ValueError):
        return None


def walked(header: BatchHeader, data: bytes) -> list[tuple[int, bytes | None, bytes | None, tuple[Header, ...]]] | None:
    cursor = RecordCursor(data)
    found = []
    try:
        for _ in range(header.record_count):
            cursor.advance()
            if not 0 <= cursor.offset_delta <= header.last_offset_delta:
                return None
            found.append(
                (int(header.base_offset + cursor.offset_delta), cursor.key(), cursor.value(), cursor.headers())
            )
        cursor.check_end()
    except InvalidBatch:
        return None
    return found


@given(changed())
def test_the_walk_accepts_and_rejects_as_the_plain_parser(case: tuple[BatchHeader, bytes]) -> None:
    header, data = case
    expected = plain(header, data)
    if expected is None:
        assert walked(header, data) is None
    else:
        assert walked(header, data) == [
            (record.offset, record.key, record.value, record.headers) for record in expected
        ]


@given(changed(), st.integers(1, 9))
def test_a_check_finds_what_a_cursor_finds_in_steps_of_any_size(case: tuple[BatchHeader, bytes], limit: int) -> None:
    header, data = case
    cursor = RecordCursor(data)
    times, deltas, keys = [], [], []
    is_sound = True
    try:
        for _ in range(header.record_count):
            cursor.advance()
            times.append(cursor.timestamp_delta)
            deltas.append(cursor.offset_delta)
            keys.append(cursor.key())
        cursor.check_end()
    except InvalidBatch:
        is_sound = False
    check = RecordsCheck(data, header.record_count)
    try:
        while not check.step(limit):
            pass
    except InvalidBatch:
        assert not is_sound
        return
    assert is_sound
    assert (check.smallest, check.largest, check.index_of_largest) == (min(times), max(times), times.index(max(times)))
    assert check.misplaced == next((index for index, delta in enumerate(deltas) if delta != index), -1)
    assert check.has_record_without_key == (None in keys)


@given(RECORDS)
def test_the_spans_of_a_cursor_are_the_records(records: list[Record]) -> None:
    batch = build_batch(records)
    header = read_header(batch)
    data = bytes(batch[HEADER_SIZE:])
    cursor = RecordCursor(data)
    pieces = []
    for record in iter_records(batch):
        cursor.advance_within(header.last_offset_delta)
        assert (header.base_offset + cursor.offset_delta, cursor.key()) == (record.offset, record.key)
        assert (cursor.value_end < 0) == (record.value is None)
        pieces.append(data[cursor.start : cursor.end])
    assert b"".join(pieces) == data


@pytest.mark.parametrize("size", [0, 1, 3, -1])
def test_too_few_and_too_many_bytes_are_rejected(size: int) -> None:
    data = bytes(build_batch([Record(0, 5, b"key", b"value")])[HEADER_SIZE:])
    assert walked(read_header(build_batch([Record(0, 5, None, None)])), data) is not None
    changed_data = data[:size] if size >= 0 else data + b"x"
    assert walked(read_header(build_batch([Record(0, 5, None, None)])), changed_data) is None


def test_a_record_outside_its_batch_is_rejected() -> None:
    data = bytes(build_batch([Record(3, 5, b"key", b"value")], base_offset=0)[HEADER_SIZE:])
    with pytest.raises(InvalidBatch, match="outside the batch"):
        RecordCursor(data).advance_within(2)
    RecordCursor(data).advance_within(3)


def test_a_count_beyond_the_records_is_rejected_after_the_last_of_them() -> None:
    batch = build_batch([Record(0, 5, b"key", b"value")])
    with pytest.raises(InvalidBatch, match="end before the record count"):
        RecordsCheck(bytes(batch[HEADER_SIZE:]), (1 << 31) - 1).step((1 << 31) - 1)
