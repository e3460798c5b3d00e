"""Message sets of magic 0 and 1, from before Kafka 0.11: reads, builds and converts them.

    offset int64 | size int32 | crc uint32 | magic int8 | attributes int8 | timestamp int64 (magic 1) |
    key_length int32, key | value_length int32, value

The CRC is the one of zlib and covers all bytes from `magic` on. A compressed message (the wrapper) has a message set as
its value, and the offset of the last inner message. Inner messages have absolute offsets in magic 0, relative ones in
magic 1. The log never has these formats. Input of any kind raises no exception other than InvalidBatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from kbroker.protocol.compression import (
    MAX_DECOMPRESSED_SIZE,
    Codec,
    break_lz4_header,
    compress,
    decompress,
    mend_lz4_header,
)
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import (
    ATTRIBUTE_CODEC_MASK,
    ATTRIBUTE_LOG_APPEND_TIME,
    NO_TIMESTAMP,
    InvalidBatch,
    ReadBuffer,
    iter_headers,
)
from kbroker.protocol.records import Pause, Record, build_batch, iter_records

__all__ = [
    "LegacyMessage",
    "build_message_set",
    "convert_down",
    "convert_up",
    "converts_at_once",
    "iter_message_records",
    "iter_messages",
]

_FRAME = Struct(">qi")
_CRC_MAGIC_ATTRIBUTES = Struct(">IBB")
_INT64 = Struct(">q")
_INT32 = Struct(">i")
_SMALLEST_SIZE = (14, 22)  # by magic: no key, no value
_ATTRIBUTES_POSITION = 17  # in the first message
_MESSAGES_PER_STEP = 50  # about 0.2 ms
_BYTES_AT_ONCE = 8 << 10  # at most 300 messages, about 1 ms


class LegacyMessage(NamedTuple):
    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None

    @property
    def codec(self) -> int:
        return self.attributes & ATTRIBUTE_CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return self.magic == 1 and self.attributes & ATTRIBUTE_LOG_APPEND_TIME != 0


def iter_messages(buffer: ReadBuffer, start: int = 0, end: int | None = None) -> Iterator[LegacyMessage]:
    """Yields the outer messages after a check of their CRCs, without decompression. Stops at an incomplete message."""
    view = memoryview(buffer)
    limit = len(view) if end is None else min(end, len(view))
    position = start
    while limit - position >= _FRAME.size:
        offset, size = _FRAME.unpack_from(view, position)
        position += _FRAME.size
        if size < _SMALLEST_SIZE[0]:
            raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"a message size of {size} is too small")
        if size > limit - position:
            return
        yield _read_message(bytes(view[position : position + size]), offset)
        position += size


def _read_message(message: bytes, offset: int) -> LegacyMessage:
    crc, magic, attributes = _CRC_MAGIC_ATTRIBUTES.unpack_from(message)
    if magic > 1:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"unsupported magic {magic} in a message set")
    if len(message) < _SMALLEST_SIZE[magic]:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"a message of {len(message)} bytes is too small")
    actual = crc32(memoryview(message)[4:])
    if actual != crc:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"CRC is {actual:#010x}, the message says {crc:#010x}")
    position = _CRC_MAGIC_ATTRIBUTES.size
    timestamp = NO_TIMESTAMP
    if magic == 1:
        (timestamp,) = _INT64.unpack_from(message, position)
        position += 8
    key, position = _read_bytes(message, position)
    value, position = _read_bytes(message, position)
    if position != len(message):
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"{len(message) - position} bytes remain in a message")
    return LegacyMessage(offset, magic, attributes, timestamp, key, value)


def _read_bytes(message: bytes, position: int) -> tuple[bytes | None, int]:
    if len(message) - position < 4:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "a message's key or value is cut off")
    (length,) = _INT32.unpack_from(message, position)
    position += 4
    if length == -1:
        return None, position
    if length < 0 or length > len(message) - position:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"{length} bytes of key or value do not fit in their message")
    return message[position : position + length], position + length


def iter_message_records(
    buffer: ReadBuffer, start: int = 0, end: int | None = None, *, max_size: int = MAX_DECOMPRESSED_SIZE
) -> Iterator[Record]:
    """Yields all records, decompressed, with absolute offsets and effective timestamps."""
    for message in iter_messages(buffer, start, end):
        yield from _unwrap(message, max_size)


def _unwrap(message: LegacyMessage, max_size: int) -> Iterator[Record]:
    if message.codec == Codec.NONE:
        yield Record(message.offset, message.timestamp, message.key, message.value)
        return
    inner = list(_iter_inner(message, max_size))
    # Old librdkafka sent wrappers with offset 0: the offsets of the inner messages then count from 0.
    shift = message.offset - inner[-1].offset if message.magic == 1 and message.offset != 0 else 0
    for inner_message in inner:
        timestamp = message.timestamp if message.is_log_append_time else inner_message.timestamp
        yield Record(inner_message.offset + shift, timestamp, inner_message.key, inner_message.value)


def _iter_inner(wrapper: LegacyMessage, max_size: int) -> Iterator[LegacyMessage]:
    """Yields the messages of a wrapper, at least one."""
    if wrapper.codec > Codec.LZ4:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"unsupported codec {wrapper.codec} in a message set")
    if wrapper.value is None:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "a compressed message without a value")
    payload = wrapper.value
    if wrapper.magic == 0 and wrapper.codec == Codec.LZ4:
        payload = mend_lz4_header(payload)
    message: LegacyMessage | None = None
    for message in iter_messages(decompress(wrapper.codec, payload, max_size)):
        if message.magic != wrapper.magic or message.codec != Codec.NONE:
            raise InvalidBatch(ErrorCode.INVALID_RECORD, "a wrapper and its messages differ in magic, or are nested")
        yield message
    if message is None:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "a compressed message with no messages inside")
    if wrapper.magic == 1 and 0 != wrapper.offset < message.offset:
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD, "a wrapper's offset is smaller than the offset of its last message"
        )


def converts_at_once(buffer: ReadBuffer) -> bool:
    """Whether `convert_up` takes less than about 2 ms. The size of compressed messages is not known before."""
    is_compressed = len(buffer) > _ATTRIBUTES_POSITION and buffer[_ATTRIBUTES_POSITION] & ATTRIBUTE_CODEC_MASK != 0
    return len(buffer) <= _BYTES_AT_ONCE and not is_compressed


def convert_up(
    buffer: ReadBuffer,
    start: int = 0,
    end: int | None = None,
    *,
    codec: int | None = None,
    level: int | None = None,
    max_size: int = MAX_DECOMPRESSED_SIZE,
    pause: Pause | None = None,
) -> bytearray:
    """Converts the message set of a Produce request v0 to v2 to one batch of magic 2 with base offset 0.

    Keeps the codec if `codec` is None. As in Kafka, raises InvalidBatch unless the set has uncompressed messages only,
    or exactly one wrapper, all of one magic. The memory is bounded by `max_size`: no object for each message stays.
    """
    messages = iter_messages(buffer, start, end)
    first = next(messages, None)
    if first is None:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "the message set is empty")
    records = _iter_upgraded(first, messages, max_size, pause)
    return build_batch(records, codec=first.codec if codec is None else codec, level=level)


def _iter_upgraded(
    first: LegacyMessage, others: Iterator[LegacyMessage], max_size: int, pause: Pause | None
) -> Iterator[Record]:
    count = 0
    for outer in chain((first,), others):
        if first.codec != Codec.NONE and outer is not first:
            raise InvalidBatch(ErrorCode.INVALID_RECORD, "more than one message where the first is compressed")
        if outer.magic != first.magic or outer.codec != first.codec:
            raise InvalidBatch(ErrorCode.INVALID_RECORD, "messages of more than one magic or codec")
        if outer.is_log_append_time:
            raise InvalidBatch(ErrorCode.INVALID_TIMESTAMP, "a producer must not use the timestamp type LogAppendTime")
        for message in (outer,) if outer.codec == Codec.NONE else _iter_inner(outer, max_size):
            if message.timestamp < NO_TIMESTAMP:
                raise InvalidBatch(ErrorCode.INVALID_TIMESTAMP, "a negative timestamp")
            if pause is not None and not count % _MESSAGES_PER_STEP:
                pause()
            yield Record(count, message.timestamp, message.key, message.value)
            count += 1


def convert_down(
    buffer: ReadBuffer,
    start: int = 0,
    end: int | None = None,
    *,
    magic: int,
    first_offset: int = 0,
    max_size: int = MAX_DECOMPRESSED_SIZE,
) -> bytes:
    """Converts batches of magic 2 to a message set for Fetch v0 to v3. Drops record headers and control batches.

    Drops uncompressed records before `first_offset`: old librdkafka does not skip them.
    """
    out = bytearray()
    for position, header in iter_headers(buffer, start, end):
        if header.is_control:
            continue
        if header.codec > Codec.LZ4:
            raise InvalidBatch(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "this Fetch version does not support zstd")
        records = [
            record
            for record in iter_records(buffer, position, max_size=max_size)
            if header.codec != Codec.NONE or record.offset >= first_offset
        ]
        log_append_time = header.max_timestamp if header.is_log_append_time else None
        out += build_message_set(records, magic=magic, codec=header.codec, log_append_time=log_append_time)
    return bytes(out)


def build_message_set(
    records: Iterable[Record],
    *,
    magic: int,
    codec: int = Codec.NONE,
    level: int | None = None,
    log_append_time: int | None = None,
) -> bytes:
    """Builds uncompressed messages or one wrapper. Returns b"" for no records."""
    records = list(records)
    attributes = ATTRIBUTE_LOG_APPEND_TIME if log_append_time is not None and magic == 1 else 0
    if log_append_time is not None:
        records = [record._replace(timestamp=log_append_time) for record in records]
    if codec == Codec.NONE or not records:
        return _plain(records, magic, attributes)
    last_offset = records[-1].offset
    timestamp = max(record.timestamp for record in records)
    if magic == 1:
        base_offset = records[0].offset
        records = [record._replace(offset=record.offset - base_offset) for record in records]
    payload = compress(codec, _plain(records, magic, attributes), level)
    if magic == 0 and codec == Codec.LZ4:
        payload = break_lz4_header(payload)
    return _message(Record(last_offset, timestamp, None, payload), magic, attributes | codec)


def _plain(records: Sequence[Record], magic: int, attributes: int) -> bytes:
    return b"".join([_message(record, magic, attributes) for record in records])


def _message(record: Record, magic: int, attributes: int) -> bytes:
    body = bytearray((magic, attributes))
    if magic == 1:
        body += _INT64.pack(record.timestamp)
    for field in (record.key, record.value):
        body += _INT32.pack(-1 if field is None else len(field))
        body += field or b""
    return _FRAME.pack(record.offset, len(body) + 4) + crc32(body).to_bytes(4, "big") + body
