"""Record batches of magic 2 to Arrow: the columns of Spark's Kafka source.

One compiled walk finds where the records begin; numpy decodes their fields for the whole buffer, and Arrow copies keys
and values. `protocol/records.py` reads the same records one at a time; a test compares them.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from kbroker.pipeline.arrow.varints import read_varints
from kbroker.protocol.compression import Codec, decompress
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import HEADER_SIZE, BatchHeader, InvalidBatch
from kbroker.protocol.record_walk import RecordCursor, append_starts

__all__ = ["ARROW_SCHEMA", "HEADERS_TYPE", "DecodedRecords", "RowFilter", "decode_batches", "to_arrow"]

ColumnArray = Any

HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ARROW_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)


class RowFilter(NamedTuple):
    """Limits of offsets and of timestamps in ms. The ends are exclusive; None: no limit."""

    start_offset: int | None = None
    end_offset: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None

    def rows(self, records: DecodedRecords) -> ColumnArray | None:
        """Returns the numbers of the records within the limits; None: all of them."""
        is_kept = np.ones(len(records.offsets), dtype=bool)
        if self.start_offset is not None:
            is_kept &= records.offsets >= self.start_offset
        if self.end_offset is not None:
            is_kept &= records.offsets < self.end_offset
        if self.start_ms is not None:
            is_kept &= records.timestamps_ms >= self.start_ms
        if self.end_ms is not None:
            is_kept &= records.timestamps_ms < self.end_ms
        return None if is_kept.all() else np.flatnonzero(is_kept)


class DecodedRecords(NamedTuple):
    """Numbers and positions of records; keys, values and headers are ranges of `data`. A length of -1 means null."""

    data: bytes
    starts: ColumnArray
    ends: ColumnArray
    offsets: ColumnArray
    timestamps_ms: ColumnArray
    timestamp_types: ColumnArray
    key_starts: ColumnArray
    key_lengths: ColumnArray
    value_starts: ColumnArray
    value_lengths: ColumnArray
    header_counts: ColumnArray

    def take(self, rows: ColumnArray) -> DecodedRecords:
        return DecodedRecords(self.data, *(column[rows] for column in self[1:]))


def decode_batches(buffer: bytes, batches: list[tuple[int, BatchHeader]]) -> DecodedRecords:
    """Decodes the batches at the given positions of the buffer. The caller has checked their CRCs.

    Raises InvalidBatch if records are malformed.
    """
    data, ranges = _payloads(buffer, batches)
    starts: list[int] = []
    ends = np.zeros(sum(header.record_count for _, header in batches), dtype=np.int64)
    for (position, end), (_, header) in zip(ranges, batches, strict=True):
        append_starts(starts, data, position, end, header.record_count)
        if header.record_count:
            ends[len(starts) - 1] = end
    begins = np.array(starts, dtype=np.int64)
    # A record ends where the next one begins, except for the last one of a batch.
    ends[:-1] = np.where(ends[:-1] > 0, ends[:-1], begins[1:])
    return _decode(data, begins, ends, [header for _, header in batches])


def _payloads(buffer: bytes, batches: list[tuple[int, BatchHeader]]) -> tuple[bytes, list[tuple[int, int]]]:
    """Returns one buffer with the records of all batches, and the range of each batch in it."""
    if all(header.codec == Codec.NONE for _, header in batches):
        return buffer, [(position + HEADER_SIZE, position + header.size) for position, header in batches]
    view = memoryview(buffer)
    parts: list[bytes] = []
    ranges: list[tuple[int, int]] = []
    total = 0
    for position, header in batches:
        part = decompress(header.codec, view[position + HEADER_SIZE : position + header.size])
        parts.append(part)
        ranges.append((total, total + len(part)))
        total += len(part)
    return b"".join(parts), ranges


def _decode(data: bytes, starts: ColumnArray, ends: ColumnArray, headers: list[BatchHeader]) -> DecodedRecords:
    counts = [header.record_count for header in headers]

    def of_batch(values: list[int]) -> ColumnArray:
        return np.repeat(np.array(values, dtype=np.int64), counts)

    array = np.frombuffer(data, dtype=np.uint8)
    _, positions = read_varints(array, starts)
    timestamp_deltas, positions = read_varints(array, positions + 1)  # one byte of attributes is unused
    offset_deltas, positions = read_varints(array, positions)
    key_lengths, key_starts = read_varints(array, positions)
    value_lengths, value_starts = read_varints(array, key_starts + np.maximum(key_lengths, 0))
    header_counts, positions = read_varints(array, value_starts + np.maximum(value_lengths, 0))
    is_wrong = (key_lengths < -1) | (value_lengths < -1) | (header_counts < 0) | (positions > ends)
    is_wrong |= (header_counts == 0) & (positions != ends)
    is_wrong |= (offset_deltas < 0) | (offset_deltas > of_batch([header.last_offset_delta for header in headers]))
    if is_wrong.any():
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"record {np.flatnonzero(is_wrong)[0]} is malformed")
    types = of_batch([int(header.is_log_append_time) for header in headers])
    timestamps = of_batch([header.base_timestamp for header in headers]) + timestamp_deltas
    if types.any():
        timestamps = np.where(types == 1, of_batch([header.max_timestamp for header in headers]), timestamps)
    return DecodedRecords(
        data,
        starts,
        ends,
        of_batch([header.base_offset for header in headers]) + offset_deltas,
        timestamps,
        types,
        key_starts,
        key_lengths,
        value_starts,
        value_lengths,
        header_counts,
    )


def to_arrow(records: DecodedRecords, topic: str, partition: int, *, has_headers: bool) -> Any:
    """Returns a RecordBatch with the columns of Spark's Kafka source."""
    count = len(records.offsets)
    key, value = _contents(records)
    columns = [
        key,
        value,
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.array(np.full(count, partition, dtype=np.int32)),
        pa.array(records.offsets),
        pa.array(records.timestamps_ms * 1000).view(pa.timestamp("us", "UTC")),
        pa.array(records.timestamp_types.astype(np.int32)),
    ]
    if not has_headers:
        return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)
    schema = ARROW_SCHEMA.append(pa.field("headers", HEADERS_TYPE))
    return pa.RecordBatch.from_arrays([*columns, _headers(records)], schema=schema)


def _contents(records: DecodedRecords) -> tuple[ColumnArray, ColumnArray]:
    """Returns keys and values.

    The data is seen as an array of pieces: key, gap, value, gap, and so on. Arrow copies every fourth piece.
    """
    count = len(records.offsets)
    bounds = np.empty(4 * count, dtype=np.int32)
    bounds[0::4] = records.key_starts
    bounds[1::4] = records.key_starts + np.maximum(records.key_lengths, 0)
    bounds[2::4] = records.value_starts
    bounds[3::4] = records.value_starts + np.maximum(records.value_lengths, 0)
    if count == 0:
        return pa.nulls(0, pa.binary()), pa.nulls(0, pa.binary())
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(records.data)]
    pieces = pa.BinaryArray.from_buffers(pa.binary(), 4 * count - 1, buffers)
    return _take(pieces, 0, records.key_lengths), _take(pieces, 2, records.value_lengths)


def _take(pieces: ColumnArray, first: int, lengths: ColumnArray) -> ColumnArray:
    is_null = lengths < 0
    if is_null.all():
        return pa.nulls(len(lengths), pa.binary())
    numbers = np.arange(len(lengths), dtype=np.int32) * 4 + first
    return pieces.take(pa.array(numbers, mask=is_null if is_null.any() else None))


def _headers(records: DecodedRecords) -> ColumnArray:
    """Returns the headers; null for records without headers, as Spark's source does."""
    found: list[list[dict[str, Any]] | None] = [None] * len(records.offsets)
    for row in np.flatnonzero(records.header_counts).tolist():
        cursor = RecordCursor(records.data[records.starts[row] : records.ends[row]])
        cursor.advance()
        found[row] = [
            {"key": name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "value": value}
            for name, value in cursor.headers()
        ]
    return pa.array(found, HEADERS_TYPE)
