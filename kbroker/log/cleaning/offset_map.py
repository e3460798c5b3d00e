"""Map from each key to its newest offset, with a memory limit.

Keys are in dicts, 200 bytes each, as long as these fit into the memory. Beyond that the keys move to a compact table of
24 bytes for a key of any length: 16 bytes, which are the key itself if it is short, else its hash, in buckets of about
64, each a bytearray that is searched in C. Both have many small parts, created on demand: enlarging or clearing one
large table would block other threads. In a process without other threads there is one dict: a look at it costs less.

Compiled with the hot path. Used only in a cleaner's thread or process.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from hashlib import blake2s
from typing import TYPE_CHECKING, Final, final

from kbroker.protocol.record_batch import BatchHeader
from kbroker.protocol.record_walk import RecordCursor

if TYPE_CHECKING:
    from mypy_extensions import i64

__all__ = ["BYTES_PER_KEY", "RECORDS_BETWEEN_TICKS", "OffsetMap", "map_keys"]

RECORDS_BETWEEN_TICKS: Final = 31

_DIGEST_SIZE: Final = 16
BYTES_PER_KEY: Final = _DIGEST_SIZE + 8
_BUCKET_KEYS: Final = 64
_BYTES_PER_KEY_IN_DICT: Final = 200  # the key, its offset, its place in the dict
_SHARDS: Final = 4096
_MAX_FLAGS: Final = 16 << 20  # bytes: they are copied in one step, in about 2 ms
_MAX_PLAIN_KEY: Final = 40  # a longer key is in the dicts as its hash
_HASH_SUFFIX: Final = bytes(_MAX_PLAIN_KEY + 1 - _DIGEST_SIZE)  # makes a hash longer than any plain key
# A key of up to 15 bytes is padded with zeros and ends with its length, so that different keys stay different.
_PADDING: Final = [bytes(_DIGEST_SIZE - 1 - length) + bytes([length]) for length in range(_DIGEST_SIZE)]


@final
class OffsetMap:
    """`latest_offset`: all records up to it are in the map. The caller sets it, and checks the capacity."""

    __slots__ = (
        "_digests",
        "_is_compact",
        "_max_in_dicts",
        "_offsets",
        "_shard_mask",
        "_shards",
        "capacity",
        "latest_offset",
        "size",
    )

    def __init__(self, capacity: int, *, max_bytes: int = 0, is_alone: bool = False) -> None:
        """`max_bytes` is the memory that the dicts may use; at least what the compact table needs.

        `is_alone`: no other thread of this process waits for the interpreter.
        """
        self.capacity = max(capacity, 1)
        self._max_in_dicts = max(max_bytes, self.capacity * BYTES_PER_KEY) // _BYTES_PER_KEY_IN_DICT
        self._is_compact = False  # whether keys move to the compact table when they are next set
        self._shard_mask = 0 if is_alone else _SHARDS - 1
        self._shards: list[dict[bytes, int] | None] = [None] * (self._shard_mask + 1)
        buckets = self.capacity // _BUCKET_KEYS + 1
        self._digests: list[bytearray | None] = [None] * buckets
        self._offsets: list[array[int] | None] = [None] * buckets
        self.size = 0
        self.latest_offset = -1

    def put(self, key: bytes, offset: int) -> None:
        """Sets the offset of a key. Called in the order of offsets, so the last one is the newest."""
        if len(key) > _MAX_PLAIN_KEY:
            key = _hash_of(key) + _HASH_SUFFIX
        number = hash(key) & self._shard_mask
        shard = self._shards[number]
        if self._is_compact:
            if shard is not None:
                self._shards[number] = None
                for known, known_offset in shard.items():
                    self._put_compact(known, known_offset)
                self.size -= len(shard)
            self._put_compact(key, offset)
        elif shard is None:
            self._shards[number] = {key: offset}
            self._count_key()
        else:
            before = len(shard)
            shard[key] = offset
            if len(shard) > before:
                self._count_key()

    def put_all(self, keys: list[bytes], first_offset: int) -> bool:
        """Sets the offsets of keys of consecutive records. Returns False, without any of them, if `put` must do it."""
        shard = self._shards[0]
        count = len(keys)
        if self._shard_mask or self._is_compact or shard is None or self.size + count >= self._max_in_dicts:
            return False
        shard.update(zip(keys, range(first_offset, first_offset + count), strict=True))
        self.size = len(shard)
        return True

    def _count_key(self) -> None:
        self.size += 1
        self._is_compact = self.size >= self._max_in_dicts

    def get(self, key: bytes) -> int:
        """Returns the newest offset of a key; -1 if the key is not in the map."""
        if len(key) > _MAX_PLAIN_KEY:
            key = _hash_of(key) + _HASH_SUFFIX
        shard = self._shards[hash(key) & self._shard_mask]
        if shard is not None:
            return shard.get(key, -1)
        return self._get_compact(key) if self._is_compact else -1

    def flags_of_newest(self, first_offset: int, tick: Callable[[], None]) -> bytes:
        """Returns one byte for each offset from `first_offset` to `latest_offset`: 1 if the map has it, else 0.

        Empty if there would be too many: then `get` says the same. All these records must have been mapped.
        """
        size = self.latest_offset + 1 - first_offset
        if not 0 < size <= _MAX_FLAGS:
            return b""
        flags = bytearray(size)
        for shard in self._shards:
            if shard is not None:
                tick()
                _set_flags(flags, shard.values(), first_offset, size)
        for offsets in self._offsets:
            if offsets is not None:
                tick()
                _set_flags(flags, offsets, first_offset, size)
        return bytes(flags)

    def _put_compact(self, key: bytes, offset: int) -> None:
        digest = _digest_of(key)
        bucket = hash(digest) % len(self._digests)
        digests, offsets = self._digests[bucket], self._offsets[bucket]
        if digests is None or offsets is None:
            self._digests[bucket], self._offsets[bucket] = bytearray(digest), array("q", (offset,))
            self.size += 1
            return
        at = digests.find(digest)
        if at > 0 and at % _DIGEST_SIZE:
            at = _find_aligned(digests, digest, at)
        if at >= 0:
            offsets[at // _DIGEST_SIZE] = offset
        else:
            digests += digest
            offsets.append(offset)
            self.size += 1

    def _get_compact(self, key: bytes) -> int:
        digest = _digest_of(key)
        bucket = hash(digest) % len(self._digests)
        digests, offsets = self._digests[bucket], self._offsets[bucket]
        if digests is None or offsets is None:
            return -1
        at = digests.find(digest)
        if at > 0 and at % _DIGEST_SIZE:
            at = _find_aligned(digests, digest, at)
        return offsets[at // _DIGEST_SIZE] if at >= 0 else -1


def _set_flags(flags: bytearray, offsets: Iterable[int], first_offset: int, size: int) -> None:
    for offset in offsets:
        at = offset - first_offset
        if 0 <= at < size:
            flags[at] = 1


def _hash_of(key: bytes) -> bytes:
    return blake2s(key, digest_size=_DIGEST_SIZE).digest()


def _digest_of(key: bytes) -> bytes:
    """Returns the 16 bytes of a key of the dicts."""
    length = len(key)
    if length > _MAX_PLAIN_KEY:
        return key[:_DIGEST_SIZE]
    return key + _PADDING[length] if length < _DIGEST_SIZE else _hash_of(key)


def _find_aligned(digests: bytearray, digest: bytes, at: int) -> int:
    """Finds the digest at the start of an entry: `at` is a match that begins within one."""
    while at >= 0 and at % _DIGEST_SIZE:
        at = digests.find(digest, at + 1)
    return at


def map_keys(offset_map: OffsetMap, records: bytes, header: BatchHeader, start: int, tick: Callable[[], None]) -> bool:
    """Maps the keys of the records of a batch from offset `start` on. Returns False if the map is full before the last.

    Raises InvalidBatch if the records are malformed or an offset is outside the batch.
    """
    base_offset, last_offset_delta = header.base_offset, header.last_offset_delta
    capacity = offset_map.capacity
    if base_offset >= start and offset_map.size + header.record_count <= capacity:
        keys = _keys_of_consecutive(records, header.record_count, tick)
        if keys is not None and offset_map.put_all(keys, base_offset):
            return True
    cursor = RecordCursor(records)
    for number in range(header.record_count):
        if not number & RECORDS_BETWEEN_TICKS:
            tick()
        cursor.advance_within(last_offset_delta)
        key = cursor.key()
        if key is not None:
            offset = base_offset + cursor.offset_delta
            if offset >= start:
                if offset_map.size >= capacity:
                    return False
                offset_map.put(key, offset)
    cursor.check_end()
    return True


def _keys_of_consecutive(records: bytes, count: int, tick: Callable[[], None]) -> list[bytes] | None:
    """Returns the keys if the offset deltas are 0, 1, 2 and so on, and each record has a key that is not long."""
    keys: list[bytes] = []
    cursor = RecordCursor(records)
    number: i64
    for number in range(count):
        if not number & RECORDS_BETWEEN_TICKS:
            tick()
        cursor.advance()
        size: i64 = cursor.key_end - cursor.key_start
        if cursor.offset_delta != number or cursor.key_end < 0 or size > _MAX_PLAIN_KEY:
            return None
        keys.append(records[cursor.key_start : cursor.key_end])
    cursor.check_end()
    return keys
