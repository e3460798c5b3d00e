"""The records inside a batch of magic 2: read, validated and built, plain and compressed; and control records.

    length varint | attributes int8 | timestamp_delta varlong | offset_delta varint | key_length varint, key |
    value_length varint, value | header_count varint, (key_length varint, key, value_length varint, value)*

Never on the hot path: Produce and Fetch move whole batches. Whatever bytes arrive, the only exception is InvalidBatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

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
from kbroker.protocol.varint import append_varint, read_varint, read_varlong

__all__ = [
    "ControlType",
    "EndTransactionMarker",
    "Header",
    "Record",
    "RecordsSummary",
    "build_batch",
    "build_end_transaction_batch",
    "iter_records",
    "read_control_type",
    "read_end_transaction_marker",
    "validate_records",
]

Header = tuple[str, bytes | None]
"""A header's key is text, but not every client writes UTF-8: odd bytes survive as surrogates, so nothing is lost."""

_MIN_INT64, _MAX_INT64 = -(1 << 63), (1 << 63) - 1


class Record(NamedTuple):
    """Offset and timestamp are absolute."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class RecordsSummary(NamedTuple):
    """What only a walk over the records can tell, for batches whose header does not (old sarama), and for indexes."""

    max_timestamp: int
    offset_of_max_timestamp: int


def iter_records(buffer: ReadBuffer, position: int = 0, *, max_size: int = MAX_DECOMPRESSED_SIZE) -> Iterator[Record]:
    """The records of the batch at `position`; decompressed when the first is asked for. The CRC is not checked here.

    Stored batches may have gaps (compaction), but no offset lies outside of the batch's own range.
    """
    header = read_header(buffer, position)
    if header.magic != 2:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"magic {header.magic} where 2 is required")
    if header.size < HEADER_SIZE or header.size > len(buffer) - position:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"a batch of {header.size} bytes does not fit")
    if header.record_count < 0:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"a count of {header.record_count} records")
    payload = memoryview(buffer)[position + HEADER_SIZE : position + header.size]
    if header.record_count == 0:
        _refuse_rest(payload)
        return
    data = decompress(header.codec, payload, max_size)
    try:
        yield from _parse(data, header)
    except IndexError:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "the records end before their count is reached") from None
    except ValueError as failure:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, str(failure)) from None


def _refuse_rest(rest: ReadBuffer) -> None:
    if len(rest):
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"{len(rest)} bytes remain after the last record")


def _parse(data: bytes, header: BatchHeader) -> Iterator[Record]:
    """Raises IndexError or ValueError too. A varint may be read past its record's end, but never past the data, and
    then the record's length does not come out even; keys, values and headers are measured before they are cut out.

    Varints of one byte are read in place: a call for each would double the time.
    """
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    last_offset_delta = header.last_offset_delta
    append_time = header.max_timestamp if header.is_log_append_time else None
    if base_offset + last_offset_delta > _MAX_INT64:
        raise ValueError("offsets beyond 64 bits")
    position, end = 0, len(data)
    for _ in range(header.record_count):
        length, position = read_varint(data, position)
        record_end = position + length
        if length < 0 or record_end > end:
            raise ValueError(f"a record of {length} bytes does not fit")
        position += 1  # attributes: no bit has a meaning yet
        if data[position] < 0x80:
            timestamp_delta = (data[position] >> 1) ^ -(data[position] & 1)
            position += 1
        else:
            timestamp_delta, position = read_varlong(data, position)
        if data[position] < 0x80:
            offset_delta = (data[position] >> 1) ^ -(data[position] & 1)
            position += 1
        else:
            offset_delta, position = read_varint(data, position)
        if offset_delta < 0 or offset_delta > last_offset_delta:
            raise ValueError(f"offset delta {offset_delta} lies outside of the batch")
        key, position = _read_bytes(data, position, record_end)
        value, position = _read_bytes(data, position, record_end)
        headers: tuple[Header, ...] = ()
        if data[position] == 0:
            position += 1
        else:
            headers, position = _read_headers(data, position, record_end)
        if position != record_end:
            raise ValueError(f"a record's fields take {position - record_end + length} bytes of its {length}")
        timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
        if not _MIN_INT64 <= timestamp <= _MAX_INT64:
            timestamp = _wrapped(timestamp)
        yield Record(base_offset + offset_delta, timestamp, key, value, headers)
    if position != end:
        raise ValueError(f"{end - position} bytes remain after the last record")


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length = data[position]
    if length < 0x80:  # the zigzag of -1 is 1
        position += 1
        length = (length >> 1) ^ -(length & 1)
    else:
        length, position = read_varint(data, position)
    if length < 0:
        return None, position
    stop = position + length
    if stop > end:
        raise ValueError(f"{length} bytes of key, value or header do not fit in their record")
    return data[position:stop], stop


def _read_headers(data: bytes, position: int, end: int) -> tuple[tuple[Header, ...], int]:
    count, position = read_varint(data, position)
    if count < 0 or count > end - position:
        raise ValueError(f"a record cannot have {count} headers")
    headers: list[Header] = []
    for _ in range(count):
        key, position = _read_bytes(data, position, end)
        if key is None:
            raise ValueError("a header without a key")
        value, position = _read_bytes(data, position, end)
        headers.append((key.decode("utf-8", "surrogateescape"), value))
    return tuple(headers), position


def validate_records(
    buffer: ReadBuffer,
    position: int = 0,
    *,
    require_keys: bool = False,
    earliest_timestamp: int | None = None,
    latest_timestamp: int | None = None,
    max_size: int = MAX_DECOMPRESSED_SIZE,
) -> RecordsSummary:
    """Every record of a client's batch: parses, offsets without gaps, count as declared; optionally keys (compacted
    topics) and timestamps between two bounds. Header and CRC are `validate_batch`'s."""
    expected_offset = read_header(buffer, position).base_offset
    max_timestamp, offset_of_max_timestamp = NO_TIMESTAMP, -1
    keyless: list[tuple[int, str]] = []
    untimely: list[tuple[int, str]] = []
    for index, record in enumerate(iter_records(buffer, position, max_size=max_size)):
        if record.offset != expected_offset:
            raise InvalidBatch(ErrorCode.INVALID_RECORD, f"record {index} does not have offset delta {index}")
        expected_offset += 1
        timestamp = record.timestamp
        if timestamp > max_timestamp:
            max_timestamp, offset_of_max_timestamp = timestamp, record.offset
        if require_keys and record.key is None:
            keyless.append((index, "a compacted topic takes no record without a key"))
        elif timestamp != NO_TIMESTAMP and (
            (earliest_timestamp is not None and timestamp < earliest_timestamp)
            or (latest_timestamp is not None and timestamp > latest_timestamp)
        ):
            untimely.append((index, f"timestamp {timestamp} is out of range"))
    if untimely:
        errors = tuple(sorted(keyless + untimely))
        raise InvalidBatch(ErrorCode.INVALID_TIMESTAMP, "timestamps are out of range", errors)
    if keyless:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "records have no key", tuple(keyless))
    return RecordsSummary(max_timestamp, offset_of_max_timestamp)


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
    """One batch of these records, in order of their absolute offsets.

    Base offset and last offset delta are those of the first and last record, unless given: a cleaner that drops records
    keeps the range of the batch, even where none is left. `delete_horizon` takes the base timestamp's place (KIP-534).
    """
    records = list(records)
    first = records[0] if records else Record(base_offset or 0, NO_TIMESTAMP, None, None)
    if base_offset is None:
        base_offset = first.offset
    base_timestamp = first.timestamp if delete_horizon is None else delete_horizon
    out = bytearray()
    for record in records:
        _append_record(out, record, base_offset, base_timestamp)
    if last_offset_delta is None:
        last_offset_delta = records[-1].offset - base_offset if records else 0
    max_timestamp = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    attributes = (
        (codec if records else Codec.NONE)
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
        record_count=len(records),
    )
    return pack_batch(header, compress(codec, out, level) if records and codec else out)


def _wrapped(number: int) -> int:
    """In 64 bits with a sign, as Java counts: two timestamps may lie further apart than that, and come back whole."""
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
    """The second number of a control record's key. Types that Kafka added for KRaft are never in a topic's log."""

    ABORT = 0
    COMMIT = 1


class EndTransactionMarker(NamedTuple):
    is_commit: bool
    coordinator_epoch: int


def read_control_type(record: Record) -> int:
    """The type in a control record's key; one that is not in ControlType is to be passed over."""
    key = record.key
    if key is None or len(key) < _CONTROL_KEY.size:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "a control record's key is too short")
    version, control_type = _CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"a control record's key of version {version}")
    return int(control_type)


def read_end_transaction_marker(record: Record) -> EndTransactionMarker | None:
    """The marker, or None where the control record is something else. Later versions only ever add to the value."""
    control_type = read_control_type(record)
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    value = record.value
    if value is None or len(value) < _END_TRANSACTION_VALUE.size:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "an end of transaction's value is too short")
    version, coordinator_epoch = _END_TRANSACTION_VALUE.unpack_from(value)
    if version < 0:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"an end of transaction's value of version {version}")
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
