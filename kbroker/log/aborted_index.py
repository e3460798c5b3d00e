"""`.txnindex`: the transactions that were aborted in a segment, in the order of their markers. Made when the first is.

Entries of 34 bytes: version int16 (0), producer id, first offset, offset of the marker, last stable offset once this
transaction had ended (int64 each). The last one tells a reader when it may stop looking.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from kbroker.log.filesystem import FileSystem

__all__ = ["AbortedIndex", "AbortedTransaction", "aborted_in_range"]

_ENTRY = Struct(">hqqqq")
_VERSION = 0


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedIndex:
    __slots__ = ("_entries", "_filesystem", "path")

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self.path = path
        self._entries: list[AbortedTransaction] | None = None

    @property
    def entries(self) -> list[AbortedTransaction]:
        if self._entries is None:
            self._entries = self._read()
        return self._entries

    def append(self, aborted: AbortedTransaction) -> None:
        entries = self.entries
        file = self._filesystem.open(self.path, create=True)
        try:
            file.write_at([_ENTRY.pack(_VERSION, *aborted)], len(entries) * _ENTRY.size)
        finally:
            file.close()
        entries.append(aborted)

    def truncate_to(self, offset: int) -> None:
        """Forgets the transactions whose marker lies at `offset` or later."""
        kept = [each for each in self.entries if each.last_offset < offset]
        if len(kept) < len(self.entries):
            self._filesystem.replace(self.path, b"".join(_ENTRY.pack(_VERSION, *each) for each in kept), sync=False)
            self._entries = kept

    def reset(self) -> None:
        self._filesystem.remove(self.path)
        self._entries = []

    def _read(self) -> list[AbortedTransaction]:
        try:
            content = self._filesystem.read(self.path)
        except FileNotFoundError:
            return []
        whole = len(content) - len(content) % _ENTRY.size
        return [AbortedTransaction(*fields[1:]) for fields in _ENTRY.iter_unpack(content[:whole])]


def aborted_in_range(indexes: Iterable[AbortedIndex], start: int, end: int) -> Iterator[AbortedTransaction]:
    """Those that a reader of [start, end) has to leave out. The indexes begin with the segment that holds `start`."""
    for index in indexes:
        for aborted in index.entries:
            if aborted.last_offset >= start and aborted.first_offset < end:
                yield aborted
            if aborted.last_stable_offset >= end:
                return
