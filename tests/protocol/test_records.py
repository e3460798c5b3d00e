"""Records: round trips, refusals, control records; and agreement with Java's and kafka-python's bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kafka.codec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from kbroker.protocol.compression import Codec, compress, decompress
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import (
    HEADER_SIZE,
    MIN_RECORD_SIZE,
    BatchHeader,
    InvalidBatch,
    pack_batch,
    read_header,
    restamp_log_append_time,
    validate_batch,
    validate_stored_batch,
)
from kbroker.protocol.records import (
    EndTransactionMarker,
    Record,
    RecordsSummary,
    build_batch,
    build_end_transaction_batch,
    check_records,
    iter_records,
    read_control_type,
    read_end_transaction_marker,
)
from kbroker.protocol.varint import append_varint
from tests.protocol.plain_records import read_varint, read_varlong

VECTORS = [
    line.split()
    for line in (Path(__file__).parent / "java_record_vectors.txt").read_text().splitlines()
    if not line.startswith("#")
]
JAVA_BATCHES = {(codec, kind): bytes.fromhex(data) for magic, codec, kind, data in VECTORS[:-1] if magic == "2"}
JAVA_MARKER = bytes.fromhex(VECTORS[-1][1])
WORDS = b"the same words again and again and again and again"
JAVA_RECORDS = [
    Record(100, 1700000000100, b"k1", WORDS, (("trace", b"abc"), ("none", None))),
    Record(101, 1700000000000, None, b"v2"),
    Record(102, 1700000000250, b"k3", None),
]
APPEND_TIME = 1700000009999

optional_bytes = st.none() | st.binary(max_size=200)
header_keys = st.text(max_size=20) | st.binary(max_size=20).map(lambda key: key.decode("utf-8", "surrogateescape"))
timestamps = st.integers(-(1 << 62), (1 << 62) - 1)  # the difference of two fits into 64 bits


@st.composite
def record_lists(draw: st.DrawFn, *, gaps: bool = False, max_size: int = 8) -> list[Record]:
    step = st.integers(1, 1000) if gaps else st.just(1)
    offset = draw(st.integers(0, 1 << 40))
    records: list[Record] = []
    for _ in range(draw(st.integers(1, max_size))):
        headers = draw(st.lists(st.tuples(header_keys, optional_bytes), max_size=3))
        records.append(Record(offset, draw(timestamps), draw(optional_bytes), draw(optional_bytes), tuple(headers)))
        offset += draw(step)
    return records


def batch_of(payload: bytes, *, count: int = 1, codec: int = 0, last_offset_delta: int | None = None) -> bytearray:
    """A batch whose header and CRC are right, whatever its records are."""
    delta = count - 1 if last_offset_delta is None else last_offset_delta
    return pack_batch(BatchHeader(0, 0, 0, 2, 0, codec, delta, 0, 0, -1, -1, -1, count), payload)


def record_of(*fields: int | bytes) -> bytes:
    """One record: integers as varints, bytes as they are, behind its own length."""
    body = bytearray()
    for field in fields:
        if isinstance(field, bytes):
            body += field
        else:
            append_varint(body, field)
    out = bytearray()
    append_varint(out, len(body))
    return bytes(out + body)


@pytest.mark.parametrize("codec", list(Codec))
@given(records=record_lists(gaps=True))
def test_what_was_built_is_read_again(codec: Codec, records: list[Record]) -> None:
    batch = build_batch(records, codec=codec)
    assert list(iter_records(b"xyz" + batch + b"!", 3)) == records
    header = validate_stored_batch(batch)
    assert header.codec == codec
    assert (header.base_offset, header.last_offset) == (records[0].offset, records[-1].offset)
    assert header.max_timestamp == max(record.timestamp for record in records)


def test_the_fields_of_the_header_are_those_asked_for() -> None:
    batch = build_batch(
        JAVA_RECORDS,
        base_offset=90,
        last_offset_delta=20,
        leader_epoch=3,
        producer_id=1 << 40,
        producer_epoch=7,
        base_sequence=9,
        is_transactional=True,
        delete_horizon=1800000000000,
    )
    header = validate_stored_batch(batch)
    assert header._replace(crc=0, batch_length=0) == BatchHeader(
        90, 0, 3, 2, 0, 0x50, 20, 1800000000000, 1700000000250, 1 << 40, 7, 9, 3
    )
    assert list(iter_records(batch)) == JAVA_RECORDS


def test_an_empty_batch_has_a_range_but_no_records_and_no_codec() -> None:
    batch = build_batch([], base_offset=5, last_offset_delta=2, codec=Codec.GZIP)
    assert len(batch) == HEADER_SIZE
    assert validate_stored_batch(batch).codec == Codec.NONE
    assert list(iter_records(batch)) == []


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_of_java_are_read(codec: str) -> None:
    batch = JAVA_BATCHES[codec, "CreateTime"]
    header = validate_batch(batch)
    assert (header.codec, header.producer_id, header.base_sequence) == (Codec[codec.upper()], 7, 11)
    assert list(iter_records(batch)) == JAVA_RECORDS
    assert check_batch(batch) == (1700000000250, 102)


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_log_append_time_is_the_time_of_every_record(codec: str) -> None:
    expected = [record._replace(timestamp=APPEND_TIME) for record in JAVA_RECORDS]
    assert list(iter_records(JAVA_BATCHES[codec, "LogAppendTime"])) == expected
    restamped = bytearray(JAVA_BATCHES[codec, "CreateTime"])
    restamp_log_append_time(restamped, 0, APPEND_TIME)
    assert list(iter_records(restamped)) == expected


def test_a_plain_batch_is_byte_for_byte_javas() -> None:
    ours = build_batch(
        JAVA_RECORDS, leader_epoch=5, producer_id=7, producer_epoch=3, base_sequence=11, is_transactional=True
    )
    assert ours == JAVA_BATCHES["none", "CreateTime"]


CODECS_OF_KAFKA_PYTHON = [
    codec for codec in Codec if codec is Codec.NONE or getattr(kafka.codec, f"has_{codec.name.lower()}")()
]


def test_kafka_python_knows_enough_codecs_here_to_be_a_witness() -> None:
    assert {Codec.GZIP, Codec.SNAPPY, Codec.LZ4} <= set(CODECS_OF_KAFKA_PYTHON)


@pytest.mark.parametrize("codec", CODECS_OF_KAFKA_PYTHON)
@given(records=record_lists())
def test_kafka_python_writes_what_we_read(codec: Codec, records: list[Record]) -> None:
    records = [record._replace(offset=index, timestamp=abs(record.timestamp)) for index, record in enumerate(records)]
    records = [record._replace(headers=_clean(record)) for record in records]
    builder = DefaultRecordBatchBuilder(2, codec, True, 5, 1, 3, 1 << 20)
    for record in records:
        builder.append(*record[:4], list(record.headers))
    batch = bytes(builder.build())
    header = validate_batch(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, 3)
    assert header.is_transactional
    assert list(iter_records(batch)) == records


@pytest.mark.parametrize("codec", CODECS_OF_KAFKA_PYTHON)
@given(records=record_lists(gaps=True))
def test_kafka_python_reads_what_we_write(codec: Codec, records: list[Record]) -> None:
    records = [record._replace(headers=_clean(record)) for record in records]
    theirs = DefaultRecordBatch(bytes(build_batch(records, codec=codec, producer_id=4, producer_epoch=0)))
    assert theirs.validate_crc()
    assert [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in theirs] == records


def _clean(record: Record) -> tuple[tuple[str, bytes | None], ...]:
    """kafka-python takes only keys that are UTF-8."""
    return tuple((key.encode("utf-8", "replace").decode(), value) for key, value in record.headers)


FIELDS = (b"\x00", 0, 0)  # attributes, timestamp delta, offset delta


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x01",  # a length of -1
        b"\x00",  # a length of 0
        b"\xff\xff\xff\xff\x0f",  # the smallest length of all
        b"\x80" * 5 + b"\x00",  # a length that goes on for too long
        b"\xff\xff\xff\xff\x7f",  # a length beyond 32 bits
        record_of(*FIELDS, -1, -1, 0) + b"\x00",  # bytes remain
        record_of(*FIELDS, -1, -1, 0)[:-1],  # bytes are missing
        record_of(*FIELDS, -1, -1, 0, b"\x00"),  # bytes remain in the record
        record_of(*FIELDS, 5, b"abcd", -1, 0),  # a key that takes what is the value's
        record_of(*FIELDS, 1 << 30, -1, 0),
        record_of(*FIELDS, -1, 1 << 30, 0),
        record_of(*FIELDS, -1, -1, -1),  # header counts
        record_of(*FIELDS, -1, -1, (1 << 31) - 1),
        record_of(*FIELDS, -1, -1, 1),
        record_of(*FIELDS, -1, -1, 1, -1, -1),  # a header without a key
        record_of(*FIELDS, -1, -1, 1, 9, b"k", -1),
        record_of(b"\x00", 0, 1, -1, -1, 0),  # an offset after the batch's last
        record_of(b"\x00", 0, -1, -1, -1, 0),  # an offset before the batch's first
        record_of(b"\x00", b"\xff" * 9 + b"\x02", 0, -1, -1, 0),  # a timestamp beyond 64 bits
        record_of(b"\x00"),
    ],
)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_malformed_record_is_refused(payload: bytes, codec: Codec) -> None:
    batch = batch_of(compress(codec, payload), codec=codec)
    if len(payload) >= MIN_RECORD_SIZE:
        validate_batch(batch)  # the header alone cannot tell
    with pytest.raises(InvalidBatch) as refusal:
        list(iter_records(batch))
    assert refusal.value.code is ErrorCode.INVALID_RECORD
    with pytest.raises(InvalidBatch):
        check_batch(batch)


def test_the_well_formed_neighbour_of_those_is_read() -> None:
    assert list(iter_records(batch_of(record_of(*FIELDS, -1, -1, 0)))) == [Record(0, 0, None, None)]


@pytest.mark.parametrize("base_timestamp", [(1 << 63) - 1, -(1 << 63)])
def test_timestamps_that_leave_64_bits_come_in_at_the_other_end_as_in_java(base_timestamp: int) -> None:
    delta = 1 if base_timestamp > 0 else -1
    header = read_header(batch_of(b""))._replace(base_timestamp=base_timestamp)
    (record,) = iter_records(pack_batch(header, record_of(b"\x00", delta, 0, -1, -1, 0)))
    assert record.timestamp == -base_timestamp - 1


def test_offsets_that_leave_64_bits_are_refused() -> None:
    header = read_header(batch_of(b"", count=1, last_offset_delta=1))._replace(base_offset=(1 << 63) - 1)
    with pytest.raises(InvalidBatch):
        list(iter_records(pack_batch(header, record_of(b"\x00", 0, 1, -1, -1, 0))))


@pytest.mark.parametrize("lie", [2, -2])  # a zigzag byte: one more, one less
def test_a_records_length_must_be_that_of_its_fields_even_where_all_else_comes_out_even(lie: int) -> None:
    payload = bytearray(record_of(*FIELDS, -1, -1, 0) + record_of(b"\x00", 0, 1, -1, -1, 0))
    assert len(list(iter_records(batch_of(bytes(payload), count=2)))) == 2
    payload[0] += lie
    with pytest.raises(InvalidBatch, match="do not end with the record"):
        list(iter_records(batch_of(bytes(payload), count=2)))


@pytest.mark.parametrize("count", [2, 4])
def test_a_count_that_the_records_do_not_have_is_refused(count: int) -> None:
    payload = b"".join(record_of(b"\x00", 0, delta, -1, -1, 0) for delta in range(3))
    assert len(list(iter_records(batch_of(payload, count=3)))) == 3
    with pytest.raises(InvalidBatch):
        list(iter_records(batch_of(payload, count=count, last_offset_delta=3)))


def test_a_huge_count_costs_nothing_before_its_records_are_there() -> None:
    with pytest.raises(InvalidBatch):
        list(iter_records(batch_of(b"", count=(1 << 31) - 1)))


@pytest.mark.parametrize(("layout", "value"), [("magic", 1), ("record_count", -1), ("attributes", 5)])
def test_a_header_that_cannot_be_is_refused_before_its_records(layout: str, value: int) -> None:
    header = read_header(batch_of(b""))._replace(**{layout: value})
    with pytest.raises(InvalidBatch):
        list(iter_records(pack_batch(header, b"")))


def test_bytes_in_a_batch_of_no_records_are_refused() -> None:
    with pytest.raises(InvalidBatch, match="remain"):
        list(iter_records(batch_of(b"x", count=0)))


def test_a_batch_that_is_cut_off_is_refused() -> None:
    batch = build_batch(JAVA_RECORDS)
    for size in (0, 60, 61, len(batch) - 1):
        with pytest.raises(InvalidBatch):
            list(iter_records(batch[:size]))


@given(st.binary(max_size=120), st.integers(0, 7), st.integers(-1, 5), st.integers(0, 5))
def test_arbitrary_records_raise_nothing_but_invalid_batch(payload: bytes, codec: int, count: int, delta: int) -> None:
    for data in (payload, compress(codec, payload) if codec <= Codec.ZSTD else payload):
        batch = batch_of(data, count=count, codec=codec, last_offset_delta=delta)
        _walk_or_refuse(batch)


@given(record_lists(max_size=3), st.sampled_from(list(Codec)), st.data())
def test_damaged_records_raise_nothing_but_invalid_batch(
    records: list[Record], codec: Codec, data: st.DataObject
) -> None:
    batch = build_batch(records, codec=codec)
    position = data.draw(st.integers(0, len(batch) - 1))
    batch[position] ^= 1 << data.draw(st.integers(0, 7))
    _walk_or_refuse(batch)


def check_batch(batch: bytes | bytearray, **rules: Any) -> RecordsSummary:
    """Checks the records of a batch as an append does, but not its CRC."""
    header = read_header(batch)
    is_whole = header.magic == 2 and HEADER_SIZE <= header.size <= len(batch)
    is_counted = 0 < header.record_count == header.last_offset_delta + 1
    if not is_whole or not is_counted or header.last_offset > (1 << 63) - 1:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "header")
    return check_records(decompress(header.codec, batch[HEADER_SIZE : header.size]), header, **rules)


def _walk_or_refuse(batch: bytearray) -> None:
    try:
        records = list(iter_records(batch))
    except InvalidBatch:
        with pytest.raises(InvalidBatch):
            check_batch(batch)
    else:
        assert len(records) == read_header(batch).record_count


def test_decompression_is_bounded_and_waits_for_the_first_record() -> None:
    batch = build_batch([Record(0, 0, None, bytes(1 << 20))], codec=Codec.ZSTD)
    records = iter_records(batch, max_size=1 << 10)
    with pytest.raises(InvalidBatch):
        next(records)


def test_full_validation_wants_offsets_without_gaps() -> None:
    good = [Record(10 + index, 5, None, None) for index in range(3)]
    assert check_batch(build_batch(good)) == (5, 10)
    for offsets in ([10, 12, 13], [10, 10, 11], [11, 10, 12]):
        bad = [record._replace(offset=offset) for record, offset in zip(good, offsets, strict=True)]
        batch = build_batch(bad, base_offset=10, last_offset_delta=2)
        with pytest.raises(InvalidBatch, match="offset delta"):
            check_batch(batch)


def test_full_validation_finds_the_first_of_the_latest_timestamps() -> None:
    records = [Record(index, timestamp, None, None) for index, timestamp in enumerate([3, 9, 1, 9])]
    assert check_batch(build_batch(records)) == (9, 1)


def test_a_compacted_topic_names_every_record_without_a_key() -> None:
    records = [Record(index, 0, key, b"") for index, key in enumerate([None, b"", b"k", None])]
    batch = build_batch(records)
    check_batch(batch)
    with pytest.raises(InvalidBatch) as refusal:
        check_batch(batch, require_keys=True)
    assert refusal.value.code is ErrorCode.INVALID_RECORD
    assert [index for index, _ in refusal.value.record_errors] == [0, 3]


def test_timestamps_out_of_bounds_are_named_but_none_at_all_is_no_fault() -> None:
    records = [Record(index, timestamp, b"k", b"") for index, timestamp in enumerate([100, 99, -1, 200, 201])]
    batch = build_batch(records)
    with pytest.raises(InvalidBatch) as refusal:
        check_batch(batch, earliest_timestamp=100, latest_timestamp=200)
    assert refusal.value.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in refusal.value.record_errors] == [1, 4]
    check_batch(batch, earliest_timestamp=99, latest_timestamp=201)


def test_an_end_transaction_marker_is_byte_for_byte_javas() -> None:
    ours = build_end_transaction_batch(
        EndTransactionMarker(is_commit=True, coordinator_epoch=17),
        producer_id=9,
        producer_epoch=4,
        timestamp=1700000000000,
        base_offset=42,
        leader_epoch=6,
    )
    assert ours == JAVA_MARKER


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_end_transaction_marker_comes_back(is_commit: bool) -> None:
    marker = EndTransactionMarker(is_commit, 1 << 30)
    batch = build_end_transaction_batch(marker, producer_id=1, producer_epoch=2, timestamp=3)
    header = validate_batch(batch)
    assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
    (record,) = iter_records(batch)
    assert read_end_transaction_marker(record) == marker


def test_other_control_records_are_passed_over_and_later_versions_are_read() -> None:
    assert read_end_transaction_marker(Record(0, 0, b"\x00\x00\x00\x02", None)) is None
    assert read_control_type(Record(0, 0, b"\x00\x05\x00\x07more", None)) == 7
    later = Record(0, 0, b"\x00\x00\x00\x01", b"\x00\x01\x00\x00\x00\x09more")
    assert read_end_transaction_marker(later) == (True, 9)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\x00" * 6),
        (b"\x00\x00\x00", b"\x00" * 6),
        (b"\xff\xff\x00\x00", b"\x00" * 6),
        (b"\x00" * 4, None),
        (b"\x00" * 4, b"\x00" * 5),
        (b"\x00" * 4, b"\xff\xff\x00\x00\x00\x00"),
    ],
)
def test_a_malformed_control_record_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(InvalidBatch):
        read_end_transaction_marker(Record(0, 0, key, value))


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.binary(max_size=3))
def test_varints_come_back_and_those_of_32_bits_stay_within_them(value: int, prefix: bytes) -> None:
    out = bytearray(prefix)
    append_varint(out, value)
    assert read_varlong(bytes(out), len(prefix)) == (value, len(out))
    if -(1 << 31) <= value < 1 << 31:
        assert len(out) - len(prefix) <= 5
        assert read_varint(bytes(out), len(prefix)) == (value, len(out))
    else:
        with pytest.raises(ValueError, match="varint"):
            read_varint(bytes(out), len(prefix))
