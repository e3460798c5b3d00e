"""`.txnindex`: the aborted transactions of a segment, in the order of their markers. Created with the first one.

Entries of 34 bytes: version int16 (0), producer id, first offset, offset of the marker, last stable offset after this
transaction ended (int64 each). A reader stops at a last stable offset at or above the end of its range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from kbroker.log.files.filesystem import FileSystem

__all__ = ["AbortedIndex", "AbortedTransaction", "aborted_in_range"]

_ENTRY = Struct(">hqqqq")
_VERSION = 0


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedIndex:
    """Entries count as soon as they are in memory: their markers are in the log, even if this file is not written."""

    __slots__ = ("_entries", "_filesystem", "_written", "path")

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self.path = path
        self._entries: list[AbortedTransaction] | None = None
        self._written = 0

    @property
    def entries(self) -> list[AbortedTransaction]:
        if self._entries is None:
            self._entries = self._read()
            self._written = len(self._entries)
        return self._entries

    def append(self, aborted: AbortedTransaction) -> None:
        self.entries.append(aborted)

    def write(self) -> bool:
        """Writes new entries to the file, without fsync. Returns whether there were any."""
        if self._entries is None or self._written == len(self._entries):
            return False
        content = b"".join(_ENTRY.pack(_VERSION, *entry) for entry in self._entries[self._written :])
        file = self._filesystem.open(self.path, create=True)
        try:
            done = 0
            while done < len(content):
                done += file.write_at([content[done:]], self._written * _ENTRY.size + done)
        finally:
            file.close()
        self._written = len(self._entries)
        return True

    def truncate_to(self, offset: int) -> None:
        """Removes the transactions whose marker is at `offset` or later."""
        kept = [entry for entry in self.entries if entry.last_offset < offset]
        if len(kept) < len(self.entries):
            content = b"".join(_ENTRY.pack(_VERSION, *entry) for entry in kept)
            self._filesystem.replace(self.path, content, sync=False)
            self._entries = kept
            self._written = len(kept)

    def _read(self) -> list[AbortedTransaction]:
        try:
            content = self._filesystem.read(self.path)
        except FileNotFoundError:
            return []
        whole = len(content) - len(content) % _ENTRY.size
        return [AbortedTransaction(*fields[1:]) for fields in _ENTRY.iter_unpack(content[:whole])]


def aborted_in_range(indexes: Iterable[AbortedIndex], start: int, end: int) -> Iterator[AbortedTransaction]:
    """Yields the transactions with batches in [start, end). The first index is of the segment that holds `start`."""
    for index in indexes:
        for aborted in index.entries:
            if aborted.last_offset >= start and aborted.first_offset < end:
                yield aborted
            if aborted.last_stable_offset >= end:
                return
