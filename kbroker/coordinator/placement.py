"""Maps a group or transactional id to its partition of the internal topic, by Kafka's hash: Kafka can use the logs."""

from __future__ import annotations

from functools import lru_cache

__all__ = ["java_hash", "partition_for"]


def java_hash(text: str) -> int:
    """Returns Java's `String.hashCode`: over UTF-16 code units, as a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for position in range(0, len(units), 2):
        value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


@lru_cache(8192)
def partition_for(key: str, count: int) -> int:
    value = java_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % count
