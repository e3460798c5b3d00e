"""Zigzag varints as the records of magic 2 use them: 32-bit ones in at most five bytes, 64-bit ones in at most ten.

Owns both directions. Reading past the end raises IndexError, which the parser of records turns into InvalidBatch;
a number that is too large raises ValueError.
"""

from __future__ import annotations

__all__ = ["append_varint", "read_varint", "read_varlong"]

_INT32_LIMIT = 1 << 32
_INT64_LIMIT = 1 << 64


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """A 32-bit number and the position after it."""
    return _read(data, position, _INT32_LIMIT)


def read_varlong(data: bytes, position: int) -> tuple[int, int]:
    """A 64-bit number and the position after it."""
    return _read(data, position, _INT64_LIMIT)


def _read(data: bytes, position: int, limit: int) -> tuple[int, int]:
    value = byte = data[position]
    shift = 0
    while byte >= 0x80:
        position += 1
        shift += 7
        if 1 << shift >= limit:
            raise ValueError("a varint goes on for too long")
        byte = data[position]
        value ^= (byte ^ 1) << shift  # takes the bit away that said "go on"
    if value >= limit:
        raise ValueError("a varint holds too large a number")
    return (value >> 1) ^ -(value & 1), position + 1


def append_varint(out: bytearray, value: int) -> None:
    """The same bytes whether the reader expects 32 or 64 bits; the caller keeps to the range that it writes for."""
    value = value << 1 if value >= 0 else (-value << 1) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
