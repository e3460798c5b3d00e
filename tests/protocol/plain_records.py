"""A second, plain parser of records, written with Python's own integers: the reference for `record_walk`."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.protocol.record_batch import BatchHeader
from kbroker.protocol.records import Header, Record

__all__ = ["parse_plainly", "read_varint", "read_varlong"]

_INT32_LIMIT = 1 << 32
_INT64_LIMIT = 1 << 64
_MIN_INT64, _MAX_INT64 = -(1 << 63), (1 << 63) - 1


def wrap_int64(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def parse_plainly(data: bytes, header: BatchHeader) -> Iterator[Record]:
    """Yields the records. Raises IndexError or ValueError for malformed records."""
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
            raise ValueError(f"offset delta {offset_delta} is outside the batch")
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
            timestamp = wrap_int64(timestamp)
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


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Reads a 32-bit number. Returns it and the position after it."""
    return _read(data, position, _INT32_LIMIT)


def read_varlong(data: bytes, position: int) -> tuple[int, int]:
    """Reads a 64-bit number. Returns it and the position after it."""
    return _read(data, position, _INT64_LIMIT)


def _read(data: bytes, position: int, limit: int) -> tuple[int, int]:
    value = byte = data[position]
    shift = 0
    while byte >= 0x80:
        position += 1
        shift += 7
        if 1 << shift >= limit:
            raise ValueError("a varint is too long")
        byte = data[position]
        value ^= (byte ^ 1) << shift  # clears the continuation bit of the previous byte
    if value >= limit:
        raise ValueError("the number of a varint is too large")
    return (value >> 1) ^ -(value & 1), position + 1
