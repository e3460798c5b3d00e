"""Where each record of a batch begins and ends, its key, and whether it has a value: what compaction asks of it.

Values and headers are not looked at, so that a record that stays can be copied as it lies. The caller has checked the
CRC and decompressed the records. Whatever bytes arrive, the only exception is InvalidBatch.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import BatchHeader, InvalidBatch
from kbroker.protocol.varint import read_varint, read_varlong

__all__ = ["Span", "iter_spans"]

Span = tuple[int, int, int, int, bytes | None, bool]
"""Start and end in the data, offset delta, timestamp delta, key, whether the value is null."""


def iter_spans(data: bytes, header: BatchHeader) -> Iterator[Span]:
    """Of the decompressed records of this batch, in order.

    Numbers of one byte are read in place, and a length of two: a call for each would double the time.
    """
    position, end = 0, len(data)
    last_offset_delta = header.last_offset_delta
    try:
        for _ in range(header.record_count):
            start = position
            number = data[position]
            if number < 0x80:
                position += 1
                length = (number >> 1) ^ -(number & 1)
            elif (second := data[position + 1]) < 0x80:
                position += 2
                number = number & 0x7F | second << 7
                length = (number >> 1) ^ -(number & 1)
            else:
                length, position = read_varint(data, position)
            record_end = position + length
            if length < 0 or record_end > end:
                raise ValueError(f"a record of {length} bytes does not fit")
            position += 1  # attributes
            number = data[position]
            if number < 0x80:
                timestamp_delta = (number >> 1) ^ -(number & 1)
                position += 1
            else:
                timestamp_delta, position = read_varlong(data, position)
            number = data[position]
            if number < 0x80:
                offset_delta = (number >> 1) ^ -(number & 1)
                position += 1
            else:
                offset_delta, position = read_varint(data, position)
            if offset_delta < 0 or offset_delta > last_offset_delta:
                raise ValueError(f"offset delta {offset_delta} lies outside of the batch")
            number = data[position]
            if number < 0x80:
                position += 1
                length = (number >> 1) ^ -(number & 1)
            else:
                length, position = read_varint(data, position)
            key = None
            if length >= 0:
                key = data[position : position + length]
                position += length
            if position >= record_end:
                raise ValueError("a key does not fit in its record")
            # The lowest bit of a zigzag number is its sign, and only -1 is negative: no value.
            yield start, record_end, offset_delta, timestamp_delta, key, data[position] & 1 == 1
            position = record_end
        if position != end:
            raise ValueError(f"{end - position} bytes remain after the last record")
    except IndexError:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "the records end before their count is reached") from None
    except ValueError as failure:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, str(failure)) from None
