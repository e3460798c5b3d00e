"""The newest offset of each key, in memory that is known beforehand: 24 bytes for a key, however long it is.

A key is known by 16 bytes: itself if it is short, else a hash. They lie in buckets of one bytearray, found by a search
in C; what a full bucket has no room for, a few of a thousand, goes to a dict. Never forgets a key.
"""

from __future__ import annotations

from array import array
from hashlib import blake2s
from typing import Final

__all__ = ["BYTES_PER_KEY", "OffsetMap"]

_DIGEST_SIZE: Final = 16
BYTES_PER_KEY: Final = _DIGEST_SIZE + 8
_BUCKET_KEYS: Final = 128
_BUCKET_BYTES: Final = _BUCKET_KEYS * _DIGEST_SIZE
# A key of up to 15 bytes is filled up with zeros, and its length comes last: no two such keys look alike.
_FILLING: Final = [bytes(_DIGEST_SIZE - 1 - length) + bytes([length]) for length in range(_DIGEST_SIZE)]


class OffsetMap:
    """`latest_offset`: everything up to there has been taken in. The owner moves it."""

    __slots__ = ("_counts", "_offsets", "_spilled", "_table", "capacity", "latest_offset", "size")

    def __init__(self, capacity: int, *, load_factor: float = 0.9) -> None:
        self.capacity = max(capacity, 1)
        buckets = max(int(self.capacity / (_BUCKET_KEYS * min(max(load_factor, 0.1), 1.0))) + 1, 1)
        self._table = bytearray(buckets * _BUCKET_BYTES)
        self._offsets = array("q", bytes(8 * buckets * _BUCKET_KEYS))
        self._counts = bytearray(buckets)
        self._spilled: dict[bytes, int] = {}
        self.size = 0
        self.latest_offset = -1

    @property
    def is_full(self) -> bool:
        return self.size >= self.capacity

    def put(self, key: bytes, offset: int) -> None:
        """Offsets come in order, so the last one is the newest."""
        length = len(key)
        digest = key + _FILLING[length] if length < _DIGEST_SIZE else blake2s(key, digest_size=_DIGEST_SIZE).digest()
        counts = self._counts
        bucket = hash(digest) % len(counts)
        count = counts[bucket]
        start = bucket * _BUCKET_BYTES
        end = start + count * _DIGEST_SIZE
        at = self._table.find(digest, start, end)
        if at % _DIGEST_SIZE and at > 0:
            at = self._find_behind(digest, at, end)
        if at >= 0:
            self._offsets[at // _DIGEST_SIZE] = offset
            return
        if count < _BUCKET_KEYS:
            self._table[end : end + _DIGEST_SIZE] = digest
            self._offsets[end // _DIGEST_SIZE] = offset
            counts[bucket] = count + 1
            self.size += 1
            return
        self.size += digest not in self._spilled
        self._spilled[digest] = offset

    def get(self, key: bytes) -> int:
        """-1: the key is not in it."""
        length = len(key)
        digest = key + _FILLING[length] if length < _DIGEST_SIZE else blake2s(key, digest_size=_DIGEST_SIZE).digest()
        bucket = hash(digest) % len(self._counts)
        start = bucket * _BUCKET_BYTES
        end = start + self._counts[bucket] * _DIGEST_SIZE
        at = self._table.find(digest, start, end)
        if at % _DIGEST_SIZE and at > 0:
            at = self._find_behind(digest, at, end)
        return self._offsets[at // _DIGEST_SIZE] if at >= 0 else self._spilled.get(digest, -1)

    def _find_behind(self, digest: bytes, at: int, end: int) -> int:
        """The end of one entry and the beginning of the next may look like a third."""
        while at >= 0 and at % _DIGEST_SIZE:
            at = self._table.find(digest, at + 1, end)
        return at
