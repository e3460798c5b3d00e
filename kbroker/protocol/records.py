"""Records of a batch of magic 2: reads, validates and builds them, compressed or not; and control records.

    length varint | attributes int8 | timestamp_delta varlong | offset_delta varint | key_length varint, key |
    value_length varint, value | header_count varint, (key_length varint, key, value_length varint, value)*

Not on the hot path: Produce and Fetch copy whole batches. Input of any kind raises no exception other than
InvalidBatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from kbroker.protocol.compression import MAX_DECOMPRESSED_SIZE, Codec, compress, decompress
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    HEADER_SIZE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    InvalidBatch,
    ReadBuffer,
    pack_batch,
    read_header,
)
from kbroker.protocol.record_walk import IS_COMPILED, Header, MisplacedRecords, RecordCursor, RecordsCheck
from kbroker.protocol.varint import append_varint

__all__ = [
    "ControlType",
    "EndTransactionMarker",
    "Header",
    "Pause",
    "Record",
    "RecordsSummary",
    "build_batch",
    "build_end_transaction_batch",
    "check_records",
    "iter_records",
    "read_control_type",
    "read_end_transaction_marker",
    "renumber_records",
]

_MIN_INT64, _MAX_INT64 = -(1 << 63), (1 << 63) - 1

_RECORDS_PER_STEP_INTERPRETED: Final = 100
_RECORDS_PER_STEP: Final = 10_000 if IS_COMPILED else _RECORDS_PER_STEP_INTERPRETED  # about 0.2 ms
# A client may send millions of wrong records in one batch. Kafka names all of them.
_MAX_RECORD_ERRORS: Final = 10_000

Pause = Callable[[], None]
"""Called every few records: lets other threads run, and may raise to end the work."""


class Record(NamedTuple):
    """A record with absolute offset and timestamp."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class RecordsSummary(NamedTuple):
    """Maximum timestamp of a batch and its offset, for indexes and for producers that do not set it (old sarama)."""

    max_timestamp: int
    offset_of_max_timestamp: int


def iter_records(buffer: ReadBuffer, position: int = 0, *, max_size: int = MAX_DECOMPRESSED_SIZE) -> Iterator[Record]:
    """Yields the records of the batch at `position`. Decompresses on the first iteration. Does not check the CRC.

    Offsets may have gaps (compaction), but are always in the range of the batch.
    """
    header = read_header(buffer, position)
    if header.magic != 2:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"magic is {header.magic} instead of 2")
    if header.size < HEADER_SIZE or header.size > len(buffer) - position:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"a batch of {header.size} bytes does not fit")
    if header.record_count < 0:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"the record count {header.record_count} is negative")
    payload = memoryview(buffer)[position + HEADER_SIZE : position + header.size]
    if header.record_count == 0:
        _refuse_rest(payload)
        return
    yield from _parse(decompress(header.codec, payload, max_size), header)


def _refuse_rest(rest: ReadBuffer) -> None:
    if len(rest):
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"{len(rest)} bytes remain after the last record")


def _parse(data: bytes, header: BatchHeader) -> Iterator[Record]:
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    last_offset_delta = header.last_offset_delta
    append_time = header.max_timestamp if header.is_log_append_time else None
    if base_offset + last_offset_delta > _MAX_INT64:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "The offsets of the batch exceed 64 bits.")
    cursor = RecordCursor(data)
    for _ in range(header.record_count):
        cursor.advance_within(last_offset_delta)
        offset_delta = cursor.offset_delta
        timestamp = base_timestamp + cursor.timestamp_delta if append_time is None else append_time
        if not _MIN_INT64 <= timestamp <= _MAX_INT64:
            timestamp = _wrapped(timestamp)
        yield Record(base_offset + offset_delta, timestamp, cursor.key(), cursor.value(), cursor.headers())
    cursor.check_end()


def check_records(
    data: bytes,
    header: BatchHeader,
    *,
    require_keys: bool = False,
    earliest_timestamp: int | None = None,
    latest_timestamp: int | None = None,
    pause: Pause | None = None,
) -> RecordsSummary:
    """Checks the decompressed records of a client's batch: fields, count, offsets without gaps.

    Optionally requires keys (compacted topics) and timestamps between two bounds. `validate_batch` checks header and
    CRC. Raises InvalidBatch if a record is invalid, MisplacedRecords if only offset deltas are wrong.
    """
    check = RecordsCheck(data, header.record_count)
    while not check.step(_RECORDS_PER_STEP):
        if pause is not None:
            pause()
    smallest, largest = header.base_timestamp + check.smallest, header.base_timestamp + check.largest
    if (
        (require_keys and check.has_record_without_key)
        or smallest < _MIN_INT64
        or largest > _MAX_INT64
        or (earliest_timestamp is not None and smallest < earliest_timestamp)
        or (latest_timestamp is not None and largest > latest_timestamp)
    ):
        summary = _check_each(data, header, require_keys, earliest_timestamp, latest_timestamp, pause)
    elif largest <= NO_TIMESTAMP:
        summary = RecordsSummary(NO_TIMESTAMP, -1)
    else:
        summary = RecordsSummary(largest, header.base_offset + check.index_of_largest)
    if check.misplaced >= 0:
        raise MisplacedRecords(check.misplaced, summary.max_timestamp)
    return summary


def _check_each(
    data: bytes,
    header: BatchHeader,
    require_keys: bool,
    earliest_timestamp: int | None,
    latest_timestamp: int | None,
    pause: Pause | None,
) -> RecordsSummary:
    """Checks each record by itself, to name the one that breaks a rule or has a timestamp of more than 64 bits."""
    cursor = RecordCursor(data)
    max_timestamp, index_of_max_timestamp = NO_TIMESTAMP, -1
    errors: list[tuple[int, str]] = []
    code = ErrorCode.NONE
    for index in range(header.record_count):
        if pause is not None and not index % _RECORDS_PER_STEP_INTERPRETED:
            pause()
        cursor.advance()
        timestamp = _wrapped(header.base_timestamp + cursor.timestamp_delta)
        if timestamp > max_timestamp:
            max_timestamp, index_of_max_timestamp = timestamp, index
        if require_keys and cursor.key_end < 0:
            reason = "Compacted topic cannot accept message without key."
            code = code or ErrorCode.INVALID_RECORD
        elif timestamp != NO_TIMESTAMP and (
            (earliest_timestamp is not None and timestamp < earliest_timestamp)
            or (latest_timestamp is not None and timestamp > latest_timestamp)
        ):
            reason = f"timestamp {timestamp} is out of range"
            code = ErrorCode.INVALID_TIMESTAMP
        else:
            continue
        if len(errors) < _MAX_RECORD_ERRORS:
            errors.append((index, reason))
    if code:
        message = "timestamps are out of range" if code == ErrorCode.INVALID_TIMESTAMP else "records have no key"
        raise InvalidBatch(code, message, tuple(errors))
    return RecordsSummary(max_timestamp, header.base_offset + index_of_max_timestamp)


def renumber_records(data: bytes, header: BatchHeader, pause: Pause | None = None) -> bytes:
    """Returns decompressed records with the offset deltas 0, 1, 2 and so on. Their timestamp deltas stay."""
    out = bytearray()
    cursor = RecordCursor(data)
    for index in range(header.record_count):
        if pause is not None and not index % _RECORDS_PER_STEP_INTERPRETED:
            pause()
        cursor.advance()
        record = Record(index, cursor.timestamp_delta, cursor.key(), cursor.value(), cursor.headers())
        _append_record(out, record, 0, 0)
    return bytes(out)


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int | None = None,
    last_offset_delta: int | None = None,
    codec: int = Codec.NONE,
    level: int | None = None,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    log_append_time: int | None = None,
    delete_horizon: int | None = None,
) -> bytearray:
    """Builds a batch of records, which must be sorted by offset.

    Base offset and last offset delta default to those of the first and last record. The log cleaner passes them, since
    a compacted batch keeps its range even if it has no records left. `delete_horizon` replaces the base timestamp
    (KIP-534).
    """
    out = bytearray()
    count, last_offset = 0, base_offset or 0
    base_timestamp = NO_TIMESTAMP if delete_horizon is None else delete_horizon
    max_timestamp = NO_TIMESTAMP
    for record in records:
        last_offset, timestamp = record[0], record[1]
        if not count:
            if base_offset is None:
                base_offset = last_offset
            if delete_horizon is None:
                base_timestamp = timestamp
            max_timestamp = timestamp
        elif timestamp > max_timestamp:
            max_timestamp = timestamp
        _append_record(out, record, base_offset or 0, base_timestamp)
        count += 1
    base_offset = base_offset or 0
    if last_offset_delta is None:
        last_offset_delta = last_offset - base_offset
    attributes = (
        (codec if count else Codec.NONE)
        | (ATTRIBUTE_TRANSACTIONAL if is_transactional else 0)
        | (ATTRIBUTE_CONTROL if is_control else 0)
        | (ATTRIBUTE_LOG_APPEND_TIME if log_append_time is not None else 0)
        | (ATTRIBUTE_DELETE_HORIZON if delete_horizon is not None else 0)
    )
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp if log_append_time is None else log_append_time,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=count,
    )
    return pack_batch(header, compress(codec, out, level) if count and codec else out)


def _wrapped(number: int) -> int:
    """Wraps a number to a signed 64-bit integer, as Java does.

    The difference of two timestamps may overflow; the reader's addition wraps it back to the same timestamp.
    """
    return (number - _MIN_INT64 & (1 << 64) - 1) + _MIN_INT64


def _append_record(out: bytearray, record: Record, base_offset: int, base_timestamp: int) -> None:
    offset, timestamp, key, value, headers = record
    body = bytearray(1)  # attributes
    append_varint(body, _wrapped(timestamp - base_timestamp))
    append_varint(body, offset - base_offset)
    _append_bytes(body, key)
    _append_bytes(body, value)
    append_varint(body, len(headers))
    for header_key, header_value in headers:
        _append_bytes(body, header_key.encode("utf-8", "surrogateescape"))
        _append_bytes(body, header_value)
    append_varint(out, len(body))
    out += body


def _append_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)  # the zigzag of -1
    else:
        append_varint(out, len(data))
        out += data


_CONTROL_KEY = Struct(">hh")
_END_TRANSACTION_VALUE = Struct(">hi")


class ControlType(IntEnum):
    """Type of a control record, from its key. The types of KRaft do not occur in logs of topics."""

    ABORT = 0
    COMMIT = 1


class EndTransactionMarker(NamedTuple):
    is_commit: bool
    coordinator_epoch: int


def read_control_type(record: Record) -> int:
    """Returns the type of a control record. Callers must skip types that are not in ControlType."""
    key = record.key
    if key is None or len(key) < _CONTROL_KEY.size:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "the key of a control record is too short")
    version, control_type = _CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"the key of a control record has the unknown version {version}")
    return int(control_type)


def read_end_transaction_marker(record: Record) -> EndTransactionMarker | None:
    """Returns the marker, or None for other control records. Later versions only add fields to the value."""
    control_type = read_control_type(record)
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    value = record.value
    if value is None or len(value) < _END_TRANSACTION_VALUE.size:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "the value of a transaction marker is too short")
    version, coordinator_epoch = _END_TRANSACTION_VALUE.unpack_from(value)
    if version < 0:
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD, f"the value of a transaction marker has the unknown version {version}"
        )
    return EndTransactionMarker(control_type == ControlType.COMMIT, coordinator_epoch)


def build_end_transaction_batch(
    marker: EndTransactionMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    control_type = ControlType.COMMIT if marker.is_commit else ControlType.ABORT
    key = _CONTROL_KEY.pack(0, control_type)
    value = _END_TRANSACTION_VALUE.pack(0, marker.coordinator_epoch)
    return build_batch(
        [Record(base_offset, timestamp, key, value)],
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )
