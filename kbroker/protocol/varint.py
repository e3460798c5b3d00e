"""Writes zigzag varints as the records of magic 2 use them. `record_walk` reads them."""

from __future__ import annotations

__all__ = ["append_varint"]


def append_varint(out: bytearray, value: int) -> None:
    """Appends a number of 32 or 64 bits; the encoding is the same. The caller checks the range."""
    value = value << 1 if value >= 0 else (-value << 1) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
