"""Index of two parallel arrays with growing keys: the common form of the offset index and the time index.

In memory while its segment is used; new entries are appended to its file. Never decides when to add an entry.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

__all__ = ["SortedIndex"]

_IS_LITTLE: Final = sys.byteorder == "little"


class SortedIndex:
    """`key_code` is the array type of the keys, "i" or "q"; the values are always int32. Big-endian in the file."""

    __slots__ = ("_key_code", "entry_size", "keys", "values", "written")

    def __init__(self, key_code: str, content: bytes = b"") -> None:
        self._key_code = key_code
        self.keys: array[int] = array(key_code)
        self.entry_size = self.keys.itemsize + 4
        self.values: array[int] = array("i")
        self.written = 0  # number of entries in the file; -1: the file has other content and must be replaced
        if content:
            self._load(content[: len(content) - len(content) % self.entry_size])

    def __len__(self) -> int:
        return len(self.keys)

    def append(self, key: int, value: int) -> None:
        self.keys.append(key)
        self.values.append(value)

    def floor(self, key: int) -> int:
        """Returns the number of the last entry whose key is not above `key`; -1 if there is none."""
        return bisect_right(self.keys, key) - 1

    def truncate_values_from(self, value: int) -> None:
        """Removes the entries with a value of at least `value`. Values grow with the keys."""
        self.truncate(bisect_left(self.values, value))

    def truncate_keys_from(self, key: int) -> None:
        """Removes the entries with a key of at least `key`."""
        self.truncate(bisect_left(self.keys, key))

    def truncate(self, count: int) -> None:
        del self.keys[count:]
        del self.values[count:]
        if self.written > count:
            self.written = -1

    def is_sorted(self) -> bool:
        """Whether keys grow strictly and values do not decrease. False after a crash during a write of the file."""
        keys, values = self.keys, self.values
        return all(map(int.__lt__, keys, keys[1:])) and all(map(int.__le__, values, values[1:]))

    def encode(self, start: int = 0) -> bytes:
        words_per_key = self.keys.itemsize // 4
        keys = array(self._key_code, self.keys[start:])
        values = array("i", self.values[start:])
        if _IS_LITTLE:
            keys.byteswap()
            values.byteswap()
        key_words = array("i", keys.tobytes())
        stride = words_per_key + 1
        words = array("i", bytes(4 * stride * len(values)))
        for word in range(words_per_key):
            words[word::stride] = key_words[word::words_per_key]
        words[words_per_key::stride] = values
        return words.tobytes()

    def _load(self, content: bytes) -> None:
        words = array("i", content)
        words_per_key = self.keys.itemsize // 4
        stride = words_per_key + 1
        key_words = array("i", bytes(4 * words_per_key * (len(words) // stride)))
        for word in range(words_per_key):
            key_words[word::words_per_key] = words[word::stride]
        self.keys.frombytes(key_words.tobytes())
        self.values = words[words_per_key::stride]
        if _IS_LITTLE:
            self.keys.byteswap()
            self.values.byteswap()
        self.written = len(self.keys)
