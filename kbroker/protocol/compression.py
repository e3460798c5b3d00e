"""The codecs of Kafka's batches: gzip, snappy (xerial's framing, and raw), lz4 frames, zstd.

Owns a hard bound on what decompression may produce: memory follows the bytes that come out, never what a header claims.
Whatever bytes arrive, the only exception is InvalidBatch.
"""

from __future__ import annotations

import mmap
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Any

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import InvalidBatch, ReadBuffer

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["MAX_DECOMPRESSED_SIZE", "Codec", "break_lz4_header", "compress", "decompress", "mend_lz4_header"]

MAX_DECOMPRESSED_SIZE = 128 << 20
_GZIP_DEFAULT_LEVEL = -1  # how Kafka's compression.gzip.level spells its default


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: int, data: ReadBuffer, level: int | None = None) -> bytes:
    """`data` as a Java client would write it. `level` is gzip's, lz4's or zstd's own scale; None is its default."""
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.SNAPPY:
        return _compress_xerial(data)
    library = _library()
    if codec == Codec.LZ4:
        # Java reads only frames of independent blocks.
        compressor = library.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        compressor.compress(bytes(data))
        return bytes(compressor.finish())
    if codec == Codec.GZIP:
        return bytes(library.gzip.compress(data, level=None if level == _GZIP_DEFAULT_LEVEL else level))
    if codec == Codec.ZSTD:
        return bytes(library.zstd.compress(data, level=level))
    raise ValueError(f"no such codec: {codec}")


def decompress(codec: int, data: ReadBuffer, max_size: int = MAX_DECOMPRESSED_SIZE) -> bytes:
    """At most `max_size` bytes; one byte more, or anything malformed, is InvalidBatch(INVALID_RECORD)."""
    if codec == Codec.NONE:
        if len(data) > max_size:
            raise _invalid(f"{len(data)} bytes where at most {max_size} are allowed")
        return bytes(data)
    if codec == Codec.SNAPPY:
        return _decompress_snappy(data, max_size)
    if codec not in _FRAMED:
        raise _invalid(f"unknown compression codec {codec}")
    return _decompress_framed(getattr(_library(), _FRAMED[codec]), data, max_size)


def _library() -> Any:
    """Loaded on first use: a broker that only stores and sends batches never needs it."""
    import cramjam

    return cramjam


def _invalid(reason: str) -> InvalidBatch:
    return InvalidBatch(ErrorCode.INVALID_RECORD, reason)


_FRAMED: dict[int, str] = {Codec.GZIP: "gzip", Codec.LZ4: "lz4", Codec.ZSTD: "zstd"}
_FIRST_GUESS = 64 << 10


def _decompress_framed(module: ModuleType, data: ReadBuffer, max_size: int) -> bytes:
    """These formats need not say how large they are. A buffer of a likely size first; then an anonymous mapping as
    large as the bound, of which the kernel provides only the pages that are written."""
    error = _library().DecompressionError
    guess = min(max_size, max(_FIRST_GUESS, 4 * len(data)))
    buffer = bytearray(guess)
    try:
        return bytes(memoryview(buffer)[: module.decompress_into(data, buffer)])
    except error as failure:
        if guess == max_size:
            raise _invalid(f"cannot decompress: {failure}") from None
    del buffer
    with mmap.mmap(-1, max_size) as mapping:
        try:
            return mapping[: module.decompress_into(data, mapping)]
        except error as failure:
            raise _invalid(f"cannot decompress: {failure}") from None


_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01" * 2  # version, and the lowest version that can read it
_XERIAL_BLOCK_SIZE = 32 << 10  # what snappy-java takes by default
_INT32 = Struct(">i")
_SNAPPY_MAX_RATIO = 64  # no element yields more than 64 bytes, or a literal's own; so a larger claim is a lie


def _compress_xerial(data: ReadBuffer) -> bytes:
    compress_raw = _library().snappy.compress_raw
    out = bytearray(_XERIAL_HEADER)
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK_SIZE):
        block = bytes(compress_raw(view[start : start + _XERIAL_BLOCK_SIZE]))
        out += _INT32.pack(len(block))
        out += block
    return bytes(out)


def _decompress_snappy(data: ReadBuffer, max_size: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _decompress_raw_snappy(view, max_size)
    out = bytearray()
    position, end = 0, len(view)
    while position < end:
        # Streams may have been appended to one another: a header can return between blocks.
        if bytes(view[position : position + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            continue
        if end - position < 4:
            raise _invalid("a snappy block's length is cut off")
        (size,) = _INT32.unpack_from(view, position)
        position += 4
        if size < 0 or size > end - position:
            raise _invalid(f"a snappy block of {size} bytes does not fit")
        out += _decompress_raw_snappy(view[position : position + size], max_size - len(out))
        position += size
    if position > end:
        raise _invalid("a snappy stream's header is cut off")
    return bytes(out)


def _decompress_raw_snappy(block: memoryview, max_size: int) -> bytes:
    library = _library()
    try:
        size = library.snappy.decompress_raw_len(block)
        if size > max_size or size > len(block) * _SNAPPY_MAX_RATIO:
            raise _invalid(f"a snappy block claims {size} bytes")
        return bytes(library.snappy.decompress_raw(block))
    except library.DecompressionError as failure:
        raise _invalid(f"cannot decompress: {failure}") from None


_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_CONTENT_SIZE = 0x08
_LZ4_DICTIONARY = 0x01


def mend_lz4_header(data: ReadBuffer) -> bytes:
    """Clients of magic 0 computed the frame header's checksum over the frame's magic too; it is replaced by the right
    one, whatever it was, as Kafka ignores it there (KAFKA-3160)."""
    return _with_lz4_header_checksum(data, 4)


def break_lz4_header(data: ReadBuffer) -> bytes:
    """The same mistake made on purpose: consumers of magic 0 refuse the right checksum."""
    return _with_lz4_header_checksum(data, 0)


def _with_lz4_header_checksum(data: ReadBuffer, covered_from: int) -> bytes:
    frame = bytearray(data)
    if len(frame) < 7 or frame[:4] != _LZ4_MAGIC or frame[4] & _LZ4_DICTIONARY:
        raise _invalid("no lz4 frame that Kafka knows")
    position = 14 if frame[4] & _LZ4_CONTENT_SIZE else 6
    if position >= len(frame):
        raise _invalid("an lz4 frame's header is cut off")
    frame[position] = _short_xxh32(bytes(frame[covered_from:position])) >> 8 & 0xFF
    return bytes(frame)


def _short_xxh32(data: bytes) -> int:
    """xxHash32 with seed 0 of fewer than 16 bytes, which is all that a frame's header has."""
    value = 374761393 + len(data) & 0xFFFFFFFF
    position = 0
    while position + 4 <= len(data):
        value = _rotate(value + int.from_bytes(data[position : position + 4], "little") * 3266489917, 17) * 668265263
        position += 4
    for byte in data[position:]:
        value = _rotate(value + byte * 374761393, 11) * 2654435761
    value &= 0xFFFFFFFF
    value = (value ^ value >> 15) * 2246822519 & 0xFFFFFFFF
    value = (value ^ value >> 13) * 3266489917 & 0xFFFFFFFF
    return value ^ value >> 16


def _rotate(value: int, bits: int) -> int:
    value &= 0xFFFFFFFF
    return (value << bits | value >> 32 - bits) & 0xFFFFFFFF
