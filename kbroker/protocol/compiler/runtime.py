"""Functions that emitted code calls: long varints, unknown tags, errors."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NoReturn

from kbroker.errors import PeerError
from kbroker.protocol.types import MAX_STRING, unsigned_varint

__all__ = [
    "FEW",
    "MAX_ELEMENTS",
    "MAX_STRING",
    "ONE_BYTE",
    "Buffer",
    "few_counted_packs",
    "few_packs",
    "few_unpacks",
    "long_length",
    "long_text_length",
    "refuse",
    "refuse_uuid",
    "shortened",
    "skip_tags",
    "varint",
]

Buffer = bytes | bytearray | memoryview

MAX_ELEMENTS = 1 << 20
"""Maximum number of array elements in a message, including nested ones.

Without this limit, a frame of empty structs could allocate gigabytes of objects.
"""

_MAX_TAGS = 1_000  # of one struct. Skipping them takes time on the event loop, also before a login.

ONE_BYTE = tuple(bytes([value]) for value in range(256))

FEW = 16
"""Shorter lists of numbers (replicas, partitions) use a prepared `struct` call instead of a format string."""


def few_unpacks(code: str) -> tuple[Callable[..., Any], ...]:
    return tuple(struct.Struct(f">{count}{code}").unpack_from for count in range(FEW))


def few_packs(code: str) -> tuple[Callable[..., bytes], ...]:
    return tuple(struct.Struct(f">{count}{code}").pack for count in range(FEW))


def few_counted_packs(code: str) -> tuple[Callable[..., bytes], ...]:
    """Returns packers that also write the compact count."""
    return tuple(struct.Struct(f">B{count}{code}").pack for count in range(FEW))


def refuse(reason: str) -> NoReturn:
    raise PeerError(reason)


def varint(buffer: Buffer, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise PeerError("varint longer than five bytes")


def skip_tags(buffer: Buffer, position: int, count: int) -> int:
    """Skips unknown tagged fields and returns the position after them. Raises PeerError if there are very many.

    `count` is the byte before `position`, the first byte of a varint.
    """
    if count > 0x7F:
        count, position = varint(buffer, position - 1)
    if count > _MAX_TAGS:
        raise PeerError(f"{count} unknown tagged fields; at most {_MAX_TAGS} are allowed")
    size = len(buffer)
    for _ in range(count):
        _, position = varint(buffer, position)
        length, position = varint(buffer, position)
        position += length
        if position > size:
            raise PeerError("a tagged field ends beyond the message")
    return position


def long_length(length: int) -> bytes:
    """Encodes a compact length (length + 1) of 128 or more."""
    return unsigned_varint(length)


def long_text_length(length: int) -> bytes:
    if length > MAX_STRING + 1:
        raise ValueError(f"string of {length - 1} bytes")
    return unsigned_varint(length)


def shortened(text: bytes) -> bytes:
    """Returns the beginning of an error message that quotes a request: quoted strings may be as long as any string."""
    return text[: MAX_STRING - 3].decode(errors="ignore").encode() + b"..."


def refuse_uuid(value: bytes) -> NoReturn:
    raise ValueError(f"uuid of {len(value)} bytes")
