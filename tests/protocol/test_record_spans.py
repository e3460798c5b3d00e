"""Spans say the same of a batch's records as a whole parse does, and refuse what it refuses for want of bytes."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kbroker.protocol.record_batch import HEADER_SIZE, InvalidBatch, read_header
from kbroker.protocol.record_spans import iter_spans
from kbroker.protocol.records import Record, build_batch, iter_records

CONTENT = st.none() | st.binary(max_size=300)
RECORDS = st.lists(
    st.builds(
        Record,
        offset=st.integers(0, 20_000),
        timestamp=st.integers(0, 1 << 40),
        key=CONTENT,
        value=CONTENT,
        headers=st.lists(st.tuples(st.text(max_size=5), CONTENT), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=8,
).map(lambda records: sorted(records, key=lambda each: each.offset))


@given(RECORDS)
def test_spans_say_what_a_parse_says(records: list[Record]) -> None:
    batch = build_batch(records)
    header = read_header(batch)
    data = bytes(batch[HEADER_SIZE:])
    spans = list(iter_spans(data, header))
    parsed = list(iter_records(batch))
    assert [
        (header.base_offset + offset, header.base_timestamp + timestamp, key, is_null)
        for _start, _end, offset, timestamp, key, is_null in spans
    ] == [(each.offset, each.timestamp, each.key, each.value is None) for each in parsed]
    assert b"".join(data[start:end] for start, end, *_ in spans) == data


@given(RECORDS, st.data())
def test_damaged_records_are_refused_and_nothing_else_happens(records: list[Record], draw: st.DataObject) -> None:
    batch = build_batch(records)
    data = bytearray(batch[HEADER_SIZE:])
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    try:
        for start, end, *_ in iter_spans(bytes(data), read_header(batch)):
            assert 0 <= start < end <= len(data)
    except InvalidBatch:
        pass


@pytest.mark.parametrize("size", [0, 1, 3, -1])
def test_too_few_bytes_and_too_many_are_refused(size: int) -> None:
    batch = build_batch([Record(0, 5, b"key", b"value")])
    data = bytes(batch[HEADER_SIZE:])
    with pytest.raises(InvalidBatch):
        list(iter_spans(data[:size] if size >= 0 else data + b"x", read_header(batch)))
