"""Compression codecs of Kafka's batches: gzip, snappy (xerial framing, and raw), lz4 frames, zstd.

Limits the size of decompressed data: memory is allocated for bytes that exist, never for the size that a header claims.
Input of any kind raises no exception other than InvalidBatch.
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

__all__ = [
    "MAX_DECOMPRESSED_SIZE",
    "Codec",
    "break_lz4_header",
    "compress",
    "compresses_at_once",
    "decompress",
    "decompress_at_once",
    "mend_lz4_header",
]

MAX_DECOMPRESSED_SIZE = 128 << 20
_GZIP_DEFAULT_LEVEL = -1  # the default of compression.gzip.level
_LZ4_DEFAULT_LEVEL = 9  # the default of compression.lz4.level, with which Kafka uses the fast compressor
_LZ4_FAST_LEVEL = 1
_LZ4_CHUNK = 64 << 10

# Uncompressed bytes that take about 1 ms, by codec. Measured: gzip 190, snappy 670, lz4 390, zstd 230 MB/s, and for
# compression 34, 410, 400 and 57 MB/s.
_DECOMPRESSED_AT_ONCE = (4 << 20, 192 << 10, 512 << 10, 384 << 10, 256 << 10)
_COMPRESSED_AT_ONCE = (4 << 20, 32 << 10, 384 << 10, 384 << 10, 64 << 10)


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: int, data: ReadBuffer, level: int | None = None) -> bytes:
    """Compresses data as a Java client does. `level` is a level of the codec; None is its default."""
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.SNAPPY:
        return _compress_xerial(data)
    library = _library()
    if codec == Codec.LZ4:
        if level is None or level == _LZ4_DEFAULT_LEVEL:
            level = _LZ4_FAST_LEVEL
        # Java reads only frames of independent blocks.
        compressor = library.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        view = memoryview(data)
        for start in range(0, len(view), _LZ4_CHUNK):  # in chunks: a compressor does not release the GIL
            compressor.compress(bytes(view[start : start + _LZ4_CHUNK]))
        return bytes(compressor.finish())
    if codec == Codec.GZIP:
        return bytes(library.gzip.compress(data, level=None if level == _GZIP_DEFAULT_LEVEL else level))
    if codec == Codec.ZSTD:
        return bytes(library.zstd.compress(data, level=level))
    raise ValueError(f"unknown compression codec {codec}")


def decompress(codec: int, data: ReadBuffer, max_size: int = MAX_DECOMPRESSED_SIZE) -> bytes:
    """Decompresses data.

    Raises InvalidBatch(INVALID_RECORD) if the data is malformed or larger than `max_size` bytes.
    """
    if codec == Codec.NONE:
        if len(data) > max_size:
            raise _invalid(f"{len(data)} bytes are more than the maximum of {max_size}")
        return bytes(data)
    if codec == Codec.SNAPPY:
        return _decompress_snappy(data, max_size)
    if codec not in _FRAMED:
        raise _invalid(f"unknown compression codec {codec}")
    return _decompress_framed(getattr(_library(), _FRAMED[codec]), data, max_size)


def compresses_at_once(codec: int, size: int) -> bool:
    """Whether `compress` takes less than about 1 ms."""
    return size <= _COMPRESSED_AT_ONCE[codec]


def decompress_at_once(codec: int, data: ReadBuffer) -> bytes | None:
    """Decompresses data if that takes less than about 1 ms. Returns None if it takes longer, or if it fails."""
    limit = _DECOMPRESSED_AT_ONCE[codec]
    if len(data) > limit:
        return None
    if codec not in _FRAMED:
        try:
            return decompress(codec, data, limit)
        except InvalidBatch:
            return None
    # The buffer is used again: a new one would be filled with zeros. A thread that finds none makes its own.
    buffer = _spare_buffers.pop() if _spare_buffers else bytearray(max(_DECOMPRESSED_AT_ONCE[1:]))
    library = _library()
    try:
        view = memoryview(buffer)[:limit]
        return bytes(view[: getattr(library, _FRAMED[codec]).decompress_into(data, view)])
    except library.DecompressionError:
        return None
    finally:
        _spare_buffers.append(buffer)


_spare_buffers: list[bytearray] = []


def _library() -> Any:
    """Imports cramjam on first use: a broker that only stores and sends batches does not need it."""
    import cramjam

    return cramjam


def _invalid(reason: str) -> InvalidBatch:
    return InvalidBatch(ErrorCode.INVALID_RECORD, reason)


_FRAMED: dict[int, str] = {Codec.GZIP: "gzip", Codec.LZ4: "lz4", Codec.ZSTD: "zstd"}
_FIRST_GUESS = 64 << 10


def _decompress_framed(module: ModuleType, data: ReadBuffer, max_size: int) -> bytes:
    """Decompresses a format that does not always state the decompressed size.

    Tries a buffer of a likely size first, then an anonymous mapping of `max_size` bytes: the kernel allocates only the
    pages that are written.
    """
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
_XERIAL_BLOCK_SIZE = 32 << 10  # the default of snappy-java
_INT32 = Struct(">i")
_SNAPPY_MAX_RATIO = 64  # an element yields at most 64 bytes, or the bytes of a literal: larger claims are false


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
        # Concatenated streams: a header may also follow a block.
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
    """Replaces the checksum of the frame header by the correct one.

    Clients of magic 0 include the frame's magic number in this checksum. Kafka ignores it in magic 0 (KAFKA-3160).
    """
    return _with_lz4_header_checksum(data, 4)


def break_lz4_header(data: ReadBuffer) -> bytes:
    """Writes the wrong checksum of clients of magic 0, which reject the correct one (KAFKA-3160)."""
    return _with_lz4_header_checksum(data, 0)


def _with_lz4_header_checksum(data: ReadBuffer, covered_from: int) -> bytes:
    frame = bytearray(data)
    if len(frame) < 7 or frame[:4] != _LZ4_MAGIC or frame[4] & _LZ4_DICTIONARY:
        raise _invalid("not an lz4 frame that Kafka supports")
    position = 14 if frame[4] & _LZ4_CONTENT_SIZE else 6
    if position >= len(frame):
        raise _invalid("an lz4 frame's header is cut off")
    frame[position] = _short_xxh32(bytes(frame[covered_from:position])) >> 8 & 0xFF
    return bytes(frame)


def _short_xxh32(data: bytes) -> int:
    """Returns xxHash32 with seed 0 of fewer than 16 bytes. Frame headers are never longer."""
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
