"""Message sets of magic 0 and 1, from before Kafka 0.11: read, and converted up and down.

    offset int64 | size int32 | crc uint32 | magic int8 | attributes int8 | timestamp int64 (magic 1) |
    key_length int32, key | value_length int32, value

The CRC is zlib's and covers everything from `magic` on. A compressed message wraps a message set in its value; it has
the offset of the last message inside. Inside, magic 0 keeps absolute offsets, magic 1 relative ones. The log never
holds these formats. Whatever bytes arrive, the only exception is InvalidBatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
from kbroker.protocol.records import Record, build_batch, iter_records

__all__ = ["LegacyMessage", "build_message_set", "convert_down", "convert_up", "iter_message_records", "iter_messages"]

_FRAME = Struct(">qi")
_CRC_MAGIC_ATTRIBUTES = Struct(">IBB")
_INT64 = Struct(">q")
_INT32 = Struct(">i")
_SMALLEST_SIZE = (14, 22)  # by magic: no key, no value


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
    """The outer messages, each checked by its CRC, wrappers unopened. One that is cut off at the end ends the walk."""
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
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"magic {magic} in a message set")
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
    """Every record, wrappers opened, with absolute offset and the timestamp that a reader is to see."""
    for message in iter_messages(buffer, start, end):
        yield from _unwrap(message, max_size)


def _unwrap(message: LegacyMessage, max_size: int) -> Iterator[Record]:
    if message.codec == Codec.NONE:
        yield Record(message.offset, message.timestamp, message.key, message.value)
        return
    inner = _open_wrapper(message, max_size)
    # librdkafka once sent wrappers with offset 0: what is inside then counts from 0 on.
    shift = message.offset - inner[-1].offset if message.magic == 1 and message.offset != 0 else 0
    if shift < 0:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "a wrapper's offset is smaller than the last one inside")
    for each in inner:
        timestamp = message.timestamp if message.is_log_append_time else each.timestamp
        yield Record(each.offset + shift, timestamp, each.key, each.value)


def _open_wrapper(wrapper: LegacyMessage, max_size: int) -> list[LegacyMessage]:
    if wrapper.codec > Codec.LZ4:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"codec {wrapper.codec} in a message set")
    if wrapper.value is None:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "a compressed message without a value")
    payload = wrapper.value
    if wrapper.magic == 0 and wrapper.codec == Codec.LZ4:
        payload = mend_lz4_header(payload)
    inner = list(iter_messages(decompress(wrapper.codec, payload, max_size)))
    if not inner:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "a compressed message with no messages inside")
    if any(each.magic != wrapper.magic or each.codec != Codec.NONE for each in inner):
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "a wrapper and its messages differ in magic, or are nested")
    return inner


def convert_up(
    buffer: ReadBuffer,
    start: int = 0,
    end: int | None = None,
    *,
    codec: int | None = None,
    level: int | None = None,
    max_size: int = MAX_DECOMPRESSED_SIZE,
) -> bytearray:
    """What a Produce request of version 0 to 2 holds, as one batch of magic 2 from offset 0 on, in its own codec or
    the given one. Several plain messages, or exactly one wrapper, all of one magic; as Kafka demands."""
    messages = list(iter_messages(buffer, start, end))
    if not messages:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "no message at all")
    first = messages[0]
    if first.codec != Codec.NONE and len(messages) > 1:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "more than one message where the first is compressed")
    if any(each.magic != first.magic or each.codec != first.codec for each in messages):
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "messages of more than one magic or codec")
    if any(each.is_log_append_time for each in messages):
        raise InvalidBatch(ErrorCode.INVALID_TIMESTAMP, "a producer may not set the broker's timestamp type")
    records = (record for message in messages for record in _unwrap(message, max_size))
    renumbered = [record._replace(offset=offset) for offset, record in enumerate(records)]
    if any(record.timestamp < NO_TIMESTAMP for record in renumbered):
        raise InvalidBatch(ErrorCode.INVALID_TIMESTAMP, "a negative timestamp")
    return build_batch(renumbered, codec=first.codec if codec is None else codec, level=level)


def convert_down(
    buffer: ReadBuffer,
    start: int = 0,
    end: int | None = None,
    *,
    magic: int,
    first_offset: int = 0,
    max_size: int = MAX_DECOMPRESSED_SIZE,
) -> bytes:
    """Batches of magic 2 as a message set for a Fetch of version 0 to 3. Headers and control batches fall away.

    Plain records before `first_offset` are left out: old librdkafka does not skip them by itself.
    """
    out = bytearray()
    for position, header in iter_headers(buffer, start, end):
        if header.is_control:
            continue
        if header.codec > Codec.LZ4:
            raise InvalidBatch(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd cannot be read by so old a client")
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
    """The records as plain messages, or as one wrapper; nothing for no records."""
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
