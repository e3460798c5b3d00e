"""The 61-byte header of a record batch (magic 2): read, validated and restamped in place, as views into a buffer.

    base_offset int64 | batch_length int32 | leader_epoch int32 | magic int8 | crc uint32 | attributes int16 |
    last_offset_delta int32 | base_timestamp int64 | max_timestamp int64 | producer_id int64 | producer_epoch int16 |
    base_sequence int32 | record_count int32 | records

The CRC covers everything from `attributes` on. Never looks at a record: that is records.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple, NoReturn

from kbroker.protocol.crc32c import crc32c
from kbroker.protocol.error_codes import ErrorCode

__all__ = [
    "ATTRIBUTE_CODEC_MASK",
    "ATTRIBUTE_CONTROL",
    "ATTRIBUTE_DELETE_HORIZON",
    "ATTRIBUTE_LOG_APPEND_TIME",
    "ATTRIBUTE_TRANSACTIONAL",
    "HEADER_SIZE",
    "LAST_CODEC",
    "LOG_OVERHEAD",
    "MAGIC_POSITION",
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

HEADER_SIZE = 61
LOG_OVERHEAD = 12  # base_offset and batch_length, which batch_length does not count
LENGTH_POSITION = 8
MAGIC_POSITION = 16  # the same in every format, so it tells them apart
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21
MAX_TIMESTAMP_POSITION = 35
MINIMUM_BATCH_LENGTH = HEADER_SIZE - LOG_OVERHEAD
SMALLEST_MESSAGE = 14  # a message of magic 0 without key and value

ATTRIBUTE_CODEC_MASK = 0x07
ATTRIBUTE_LOG_APPEND_TIME = 0x08
ATTRIBUTE_TRANSACTIONAL = 0x10
ATTRIBUTE_CONTROL = 0x20
ATTRIBUTE_DELETE_HORIZON = 0x40  # base_timestamp then holds the delete horizon of the cleaner (KIP-534)
LAST_CODEC = 4  # zstd; 5 to 7 mean nothing yet

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

_HEADER = Struct(">qiibIhiqqqhii")
_unpack_header = _HEADER.unpack_from
_INT64 = Struct(">q")
_INT32 = Struct(">i")
_UINT32 = Struct(">I")
_INT16 = Struct(">h")
_INT8 = Struct(">b")
_pack_offset = _INT64.pack_into
_pack_epoch = _INT32.pack_into


class InvalidBatch(Exception):
    """The bytes are no valid batch: the only exception that bytes can cause in the modules of records.

    `record_errors` names single records by index and reason, as Produce v8 answers them (KIP-467).
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
    """The header at `position`, unchecked but for its room. Only magic 2 has this shape: see `magic` before use."""
    if len(buffer) - position < HEADER_SIZE:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, "fewer bytes than a batch header")
    return tuple.__new__(BatchHeader, _unpack_header(buffer, position))


def validate_batch(buffer: ReadBuffer, position: int = 0, end: int | None = None) -> BatchHeader:
    """The header of a batch as a client may send it: length, magic, CRC, codec, and a record count that cannot lie.

    Bytes after the batch are the caller's to judge (`header.size`); so are control batches and sequences.
    """
    header = _validate_frame(buffer, position, len(buffer) if end is None else end)
    count = header[12]  # record_count; by index, for this is the hot path
    if count < 1 or count != header[6] + 1 or header[5] & ATTRIBUTE_CODEC_MASK > LAST_CODEC:
        _refuse_claims(header)
    return header


def validate_stored_batch(buffer: ReadBuffer, position: int = 0, end: int | None = None) -> BatchHeader:
    """The header of a batch from a log: as `validate_batch`, but the cleaner may have taken any of its records away."""
    header = _validate_frame(buffer, position, len(buffer) if end is None else end)
    count = header.record_count
    if count < 0 or count > header.last_offset_delta + 1 or header.last_offset_delta < 0 or header.base_offset < 0:
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD,
            f"{count} records cannot lie between offset {header.base_offset} and delta {header.last_offset_delta}",
        )
    if header.codec > LAST_CODEC:
        _refuse_claims(header)
    return header


def _refuse_claims(header: BatchHeader) -> NoReturn:
    if header.codec > LAST_CODEC:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"unknown compression codec {header.codec}")
    raise InvalidBatch(
        ErrorCode.INVALID_RECORD,
        f"a count of {header.record_count} records contradicts a last offset delta of {header.last_offset_delta}",
    )


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
    """Too short for any batch of magic 2; what there is of the length and the magic decides the code."""
    available = max(end - position, 0)
    if available > MAGIC_POSITION:
        (batch_length,) = _INT32.unpack_from(buffer, position + LENGTH_POSITION)
        (magic,) = _INT8.unpack_from(buffer, position + MAGIC_POSITION)
        _refuse_frame(batch_length, magic, available)
    raise InvalidBatch(ErrorCode.INVALID_RECORD, f"{available} bytes hold no batch")


def _refuse_frame(batch_length: int, magic: int, available: int) -> NoReturn:
    """Kafka's codes in Kafka's order: what cannot be walked is corrupt, a batch that is cut off is none at all."""
    if batch_length < SMALLEST_MESSAGE:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"a batch length of {batch_length} is too small for any format")
    if not 0 <= magic <= 2:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"unknown magic {magic}")
    if batch_length + LOG_OVERHEAD > available:
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD, f"a batch of {batch_length + LOG_OVERHEAD} bytes is cut off after {available}"
        )
    if magic != 2:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"magic {magic} where 2 is required")
    raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"a batch length of {batch_length} is too small for its own header")


def iter_headers(buffer: ReadBuffer, start: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Every whole batch's position and header, unverified by CRC. A batch cut off by `end` ends the walk, as a fetch
    may cut one; a batch of another magic, or too short for its own header, raises InvalidBatch."""
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
        _refuse_short(buffer, position, limit)  # no beginning of a batch, but something else


def restamp(buffer: WriteBuffer, position: int, base_offset: int, leader_epoch: int) -> None:
    """Both fields lie outside the CRC, which is why Kafka put them there."""
    _pack_offset(buffer, position, base_offset)
    _pack_epoch(buffer, position + LOG_OVERHEAD, leader_epoch)


def restamp_log_append_time(buffer: WriteBuffer, position: int, timestamp_ms: int) -> None:
    """The broker's time for every record: readers take max_timestamp where the type bit is set. Costs a new CRC."""
    (attributes,) = _INT16.unpack_from(buffer, position + ATTRIBUTES_POSITION)
    _INT16.pack_into(buffer, position + ATTRIBUTES_POSITION, attributes | ATTRIBUTE_LOG_APPEND_TIME)
    restamp_max_timestamp(buffer, position, timestamp_ms)


def restamp_max_timestamp(buffer: WriteBuffer, position: int, max_timestamp_ms: int) -> None:
    """For producers that leave max_timestamp unset (old sarama), after the records were parsed. Costs a new CRC."""
    _INT64.pack_into(buffer, position + MAX_TIMESTAMP_POSITION, max_timestamp_ms)
    (batch_length,) = _INT32.unpack_from(buffer, position + LENGTH_POSITION)
    _seal(buffer, position, position + LOG_OVERHEAD + batch_length)


def pack_batch(header: BatchHeader, records: ReadBuffer) -> bytearray:
    """A whole batch of this header and these (compressed) records; batch_length and crc are computed, not taken."""
    batch = bytearray(HEADER_SIZE + len(records))
    _HEADER.pack_into(batch, 0, *header._replace(batch_length=len(batch) - LOG_OVERHEAD, crc=0))
    batch[HEADER_SIZE:] = records
    _seal(batch, 0, len(batch))
    return batch


def _seal(buffer: WriteBuffer, position: int, end: int) -> None:
    crc = crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : end])
    _UINT32.pack_into(buffer, position + CRC_POSITION, crc)
