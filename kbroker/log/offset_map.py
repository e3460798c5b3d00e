"""The newest offset of each key, in memory that is known beforehand: about 24 bytes for a key, however long it is.

A key is known by 16 bytes: itself if it is short, else a hash. They lie in buckets of about 64, each a bytearray
that is searched in C. Buckets are made as keys come: to clear one large table would hold up every other thread.
"""

from __future__ import annotations

from array import array
from hashlib import blake2s
from typing import Final

__all__ = ["BYTES_PER_KEY", "OffsetMap"]

_DIGEST_SIZE: Final = 16
BYTES_PER_KEY: Final = _DIGEST_SIZE + 8
_BUCKET_KEYS: Final = 64
# A key of up to 15 bytes is filled up with zeros, and its length comes last: no two such keys look alike.
_FILLING: Final = [bytes(_DIGEST_SIZE - 1 - length) + bytes([length]) for length in range(_DIGEST_SIZE)]


class OffsetMap:
    """`latest_offset`: everything up to there has been taken in. The owner moves it, and heeds the capacity."""

    __slots__ = ("_digests", "_offsets", "capacity", "latest_offset", "size")

    def __init__(self, capacity: int) -> None:
        self.capacity = max(capacity, 1)
        buckets = self.capacity // _BUCKET_KEYS + 1
        self._digests: list[bytearray | None] = [None] * buckets
        self._offsets: list[array[int] | None] = [None] * buckets
        self.size = 0
        self.latest_offset = -1

    def put(self, key: bytes, offset: int) -> None:
        """Offsets come in order, so the last one is the newest."""
        length = len(key)
        digest = key + _FILLING[length] if length < _DIGEST_SIZE else blake2s(key, digest_size=_DIGEST_SIZE).digest()
        bucket = hash(digest) % len(self._digests)
        digests, offsets = self._digests[bucket], self._offsets[bucket]
        if digests is None or offsets is None:
            self._digests[bucket], self._offsets[bucket] = bytearray(digest), array("q", (offset,))
            self.size += 1
            return
        at = digests.find(digest)
        if at > 0 and at % _DIGEST_SIZE:
            at = _find_behind(digests, digest, at)
        if at >= 0:
            offsets[at // _DIGEST_SIZE] = offset
        else:
            digests += digest
            offsets.append(offset)
            self.size += 1

    def get(self, key: bytes) -> int:
        """-1: the key is not in it."""
        length = len(key)
        digest = key + _FILLING[length] if length < _DIGEST_SIZE else blake2s(key, digest_size=_DIGEST_SIZE).digest()
        bucket = hash(digest) % len(self._digests)
        digests, offsets = self._digests[bucket], self._offsets[bucket]
        if digests is None or offsets is None:
            return -1
        at = digests.find(digest)
        if at > 0 and at % _DIGEST_SIZE:
            at = _find_behind(digests, digest, at)
        return offsets[at // _DIGEST_SIZE] if at >= 0 else -1


def _find_behind(digests: bytearray, digest: bytes, at: int) -> int:
    """The end of one entry and the beginning of the next may look like a third."""
    while at >= 0 and at % _DIGEST_SIZE:
        at = digests.find(digest, at + 1)
    return at
