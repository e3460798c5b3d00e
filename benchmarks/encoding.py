"""Encoding of frames with their header, strings and varints. `frames.py` says why kbroker's codecs are not used."""

from __future__ import annotations

import struct

__all__ = ["CORRELATION_AT", "Buffer", "compact", "frame", "read_uvarint", "string", "uvarint", "varint"]

Buffer = bytes | bytearray | memoryview

CLIENT_ID = b"benchmarks"
CORRELATION_AT = 8  # of a frame: after its length, the API key and the version


def frame(key: int, version: int, body: bytes, *, flexible: bool = False) -> bytearray:
    head = struct.pack(">hhi", key, version, 0) + string(CLIENT_ID) + (b"\0" if flexible else b"")
    return bytearray(struct.pack(">i", len(head) + len(body)) + head + body)


def string(value: bytes) -> bytes:
    return struct.pack(">h", len(value)) + value


def compact(value: bytes) -> bytes:
    return uvarint(len(value) + 1) + value


def varint(value: int) -> bytes:
    return uvarint(value << 1 if value >= 0 else ~value << 1 | 1)


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(data: Buffer, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
