"""The 61-byte header of a record batch (magic 2): reads, validates and restamps it in place in a buffer.

    base_offset int64 | batch_length int32 | leader_epoch int32 | magic int8 | crc uint32 | attributes int16 |
    last_offset_delta int32 | base_timestamp int64 | max_timestamp int64 | producer_id int64 | producer_epoch int16 |
    base_sequence int32 | record_count int32 | records

The CRC covers all bytes from `attributes` on. This module never reads records; `records.py` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple, NoReturn

from kbroker.protocol.crc32c import crc32c
from kbroker.protocol.error_codes import ErrorCode

__all__ = [
    "ATTRIBUTES_LOW_BYTE_POSITION",
    "ATTRIBUTE_CODEC_MASK",
    "ATTRIBUTE_CONTROL",
    "ATTRIBUTE_DELETE_HORIZON",
    "ATTRIBUTE_LOG_APPEND_TIME",
    "ATTRIBUTE_TRANSACTIONAL",
    "HEADER_SIZE",
    "LAST_CODEC",
    "LOG_OVERHEAD",
    "MAGIC_POSITION",
    "MIN_RECORD_SIZE",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "BatchHeader",
    "InvalidBatch",
    "ReadBuffer",
    "WriteBuffer",
    "iter_headers",
    "pack_batch",
    "read_header",
    "restamp",
    "restamp_log_append_time",
    "restamp_max_timestamp",
    "validate_batch",
    "validate_stored_batch",
]

ReadBuffer = bytes | bytearray | memoryview
WriteBuffer = bytearray | memoryview

HEADER_SIZE: Final = 61
LOG_OVERHEAD: Final = 12  # base_offset and batch_length, which batch_length does not count
LENGTH_POSITION: Final = 8
MAGIC_POSITION: Final = 16  # the same in every format, so it distinguishes them
CRC_POSITION: Final = 17
ATTRIBUTES_POSITION: Final = 21  # two bytes; all attributes in use are in the low byte, which is the second:
ATTRIBUTES_LOW_BYTE_POSITION: Final = 22
MAX_TIMESTAMP_POSITION: Final = 35
MINIMUM_BATCH_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD
SMALLEST_MESSAGE: Final = 14  # a message of magic 0 without key and value

ATTRIBUTE_CODEC_MASK: Final = 0x07
ATTRIBUTE_LOG_APPEND_TIME: Final = 0x08
ATTRIBUTE_TRANSACTIONAL: Final = 0x10
ATTRIBUTE_CONTROL: Final = 0x20
ATTRIBUTE_DELETE_HORIZON: Final = 0x40  # base_timestamp then holds the delete horizon of the cleaner (KIP-534)
LAST_CODEC: Final = 4  # zstd; 5 to 7 are not defined

MIN_RECORD_SIZE: Final = 7  # length, attributes, timestamp delta, offset delta, no key, no value, no headers
# By codec: at most so many bytes come out of one compressed byte. A batch whose record count needs more is corrupt.
_MAX_RATIOS: Final = (1, 1032, 64, 255, 1 << 15)

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1

_HEADER: Final = Struct(">qiibIhiqqqhii")
_unpack_header: Final = _HEADER.unpack_from
_INT64: Final = Struct(">q")
_INT32: Final = Struct(">i")
_UINT32: Final = Struct(">I")
_INT16: Final = Struct(">h")
_INT8: Final = Struct(">b")
_pack_offset: Final = _INT64.pack_into
_pack_epoch: Final = _INT32.pack_into


class InvalidBatch(Exception):
    """The bytes are not a valid batch. The only exception that input can raise in the modules of records.

    `record_errors` has index and reason of single invalid records, for Produce v8 and later (KIP-467).
    """

    def __init__(self, code: ErrorCode, reason: str, record_errors: tuple[tuple[int, str], ...] = ()) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason
        self.record_errors = record_errors

    def __str__(self) -> str:
        return f"{self.code.name}: {self.reason}"


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        return self.attributes & ATTRIBUTE_CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & ATTRIBUTE_LOG_APPEND_TIME != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & ATTRIBUTE_TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & ATTRIBUTE_CONTROL != 0

    @property
    def has_delete_horizon(self) -> bool:
        return self.attributes & ATTRIBUTE_DELETE_HORIZON != 0


def read_header(buffer: ReadBuffer, position: int = 0) -> BatchHeader:
    """Reads the header at `position` without validation, except for its size. Valid for magic 2 only: check `magic`."""
    if len(buffer) - position < HEADER_SIZE:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, "fewer bytes than a batch header")
    return tuple.__new__(BatchHeader, _unpack_header(buffer, position))


def validate_batch(buffer: ReadBuffer, position: int = 0, end: int | None = None) -> BatchHeader:
    """Validates the batch of a client: length, magic, CRC, codec, and that the record count is possible.

    The caller checks bytes after the batch (`header.size`), control batches and sequences.
    """
    header = _validate_frame(buffer, position, len(buffer) if end is None else end)
    count = header[12]  # record_count; by index, because this is the hot path
    if (
        count < 1
        or count != header[6] + 1
        or header[5] & ATTRIBUTE_CODEC_MASK > LAST_CODEC
        or count * MIN_RECORD_SIZE > header[1] - MINIMUM_BATCH_LENGTH
    ):
        _check_claims(header)
    return header


def validate_stored_batch(buffer: ReadBuffer, position: int = 0, end: int | None = None) -> BatchHeader:
    """Validates a batch of a log. Like `validate_batch`, but the log cleaner may have removed records."""
    header = _validate_frame(buffer, position, len(buffer) if end is None else end)
    count = header.record_count
    if count < 0 or count > header.last_offset_delta + 1 or header.last_offset_delta < 0 or header.base_offset < 0:
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD,
            f"{count} records do not fit base offset {header.base_offset} and delta {header.last_offset_delta}",
        )
    _check_codec(header)
    return header


def _check_claims(header: BatchHeader) -> None:
    """Raises InvalidBatch, unless only compression makes the payload smaller than the records can be."""
    _check_codec(header)
    count, payload = header.record_count, header.batch_length - MINIMUM_BATCH_LENGTH
    if count < 1 or count != header.last_offset_delta + 1:
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD,
            f"a count of {count} records contradicts a last offset delta of {header.last_offset_delta}",
        )
    if count * MIN_RECORD_SIZE > payload * _MAX_RATIOS[header.codec]:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"{count} records cannot be in {payload} bytes")


def _check_codec(header: BatchHeader) -> None:
    if header.codec > LAST_CODEC:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"unknown compression codec {header.codec}")


def _validate_frame(buffer: ReadBuffer, position: int, end: int) -> BatchHeader:
    if end - position < HEADER_SIZE or end > len(buffer):
        _refuse_short(buffer, position, min(end, len(buffer)))
    header: BatchHeader = tuple.__new__(BatchHeader, _unpack_header(buffer, position))
    batch_length, magic, crc = header[1], header[3], header[4]
    batch_end = position + LOG_OVERHEAD + batch_length
    if batch_end > end or batch_length < MINIMUM_BATCH_LENGTH or magic != 2:
        _refuse_frame(batch_length, magic, end - position)
    actual = crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : batch_end])
    if actual != crc:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"CRC is {actual:#010x}, the header says {crc:#010x}")
    return header


def _refuse_short(buffer: ReadBuffer, position: int, end: int) -> NoReturn:
    """Raises InvalidBatch if a header needs more bytes. The error code depends on length and magic, if present."""
    available = max(end - position, 0)
    if available > MAGIC_POSITION:
        (batch_length,) = _INT32.unpack_from(buffer, position + LENGTH_POSITION)
        (magic,) = _INT8.unpack_from(buffer, position + MAGIC_POSITION)
        _refuse_frame(batch_length, magic, available)
    raise InvalidBatch(ErrorCode.INVALID_RECORD, f"{available} bytes are too few for a batch")


def _refuse_frame(batch_length: int, magic: int, available: int) -> NoReturn:
    """Raises InvalidBatch, with Kafka's error code and in the order of Kafka's checks, if a field is invalid."""
    if batch_length < SMALLEST_MESSAGE:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"a batch length of {batch_length} is too small for any format")
    if not 0 <= magic <= 2:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"unknown magic {magic}")
    if batch_length + LOG_OVERHEAD > available:
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD, f"a batch of {batch_length + LOG_OVERHEAD} bytes is cut off after {available}"
        )
    if magic != 2:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"magic is {magic} instead of 2")
    raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"a batch length of {batch_length} is too small for its own header")


def iter_headers(buffer: ReadBuffer, start: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Yields position and header of each complete batch, without checking the CRC.

    Stops at a batch that `end` cuts off, since a fetch may return an incomplete batch. Raises InvalidBatch if a
    batch has another magic, or is shorter than its header.
    """
    limit = len(buffer) if end is None else min(end, len(buffer))
    position = start
    while limit - position >= HEADER_SIZE:
        header: BatchHeader = tuple.__new__(BatchHeader, _unpack_header(buffer, position))
        if header.batch_length < MINIMUM_BATCH_LENGTH or header.magic != 2:
            _refuse_frame(header.batch_length, header.magic, limit - position)
        next_position = position + LOG_OVERHEAD + header.batch_length
        if next_position > limit:
            return
        yield position, header
        position = next_position
    if limit - position > MAGIC_POSITION and buffer[position + MAGIC_POSITION] != 2:
        _refuse_short(buffer, position, limit)  # not the start of a batch of magic 2


def restamp(buffer: WriteBuffer, position: int, base_offset: int, leader_epoch: int) -> None:
    """Sets base offset and leader epoch. The CRC does not cover them, so it stays valid."""
    _pack_offset(buffer, position, base_offset)
    _pack_epoch(buffer, position + LOG_OVERHEAD, leader_epoch)


def restamp_log_append_time(buffer: WriteBuffer, position: int, timestamp_ms: int) -> None:
    """Sets LogAppendTime: readers use max_timestamp for all records if the type bit is set. Computes a new CRC."""
    (attributes,) = _INT16.unpack_from(buffer, position + ATTRIBUTES_POSITION)
    _INT16.pack_into(buffer, position + ATTRIBUTES_POSITION, attributes | ATTRIBUTE_LOG_APPEND_TIME)
    restamp_max_timestamp(buffer, position, timestamp_ms)


def restamp_max_timestamp(buffer: WriteBuffer, position: int, max_timestamp_ms: int) -> None:
    """Sets max_timestamp, for producers that do not set it (old sarama). Computes a new CRC."""
    _INT64.pack_into(buffer, position + MAX_TIMESTAMP_POSITION, max_timestamp_ms)
    (batch_length,) = _INT32.unpack_from(buffer, position + LENGTH_POSITION)
    _seal(buffer, position, position + LOG_OVERHEAD + batch_length)


def pack_batch(header: BatchHeader, records: ReadBuffer) -> bytearray:
    """Builds a batch from a header and (compressed) records. Computes batch_length and crc."""
    batch = bytearray(HEADER_SIZE + len(records))
    _HEADER.pack_into(batch, 0, *header._replace(batch_length=len(batch) - LOG_OVERHEAD, crc=0))
    batch[HEADER_SIZE:] = records
    _seal(batch, 0, len(batch))
    return batch


def _seal(buffer: WriteBuffer, position: int, end: int) -> None:
    crc = crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : end])
    _UINT32.pack_into(buffer, position + CRC_POSITION, crc)
