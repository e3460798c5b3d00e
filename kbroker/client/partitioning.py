"""Partition of a key by Kafka's murmur2 hash, so that all clients choose the same partition."""

from __future__ import annotations

from typing import Final

__all__ = ["MULTIPLIER", "SEED", "murmur2", "partition_of_key"]

SEED: Final = 0x9747B28C
MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Returns the hash as an unsigned 32-bit integer."""
    length = len(data)
    value = SEED ^ length
    whole = length & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * MULTIPLIER & _MASK
        word = (word ^ word >> 24) * MULTIPLIER & _MASK
        value = value * MULTIPLIER & _MASK ^ word
    if whole < length:
        value = (value ^ int.from_bytes(data[whole:], "little")) * MULTIPLIER & _MASK
    value = (value ^ value >> 13) * MULTIPLIER & _MASK
    return value ^ value >> 15


def partition_of_key(key: bytes, partition_count: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
