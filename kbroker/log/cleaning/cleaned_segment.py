"""Segment that compaction writes to replace others, and the two renames that replace them.

    .cleaned   being written; deleted at the next start
    .swap      complete and fsynced; the next start completes the swap and deletes the replaced segments
    no suffix  an ordinary segment

The `.log` is renamed before its indexes, so that an index never belongs to another log. `complete_swaps` runs at the
start. Never decides which records are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kbroker.log.files.filesystem import FileSystem
from kbroker.log.segments.aborted_index import AbortedIndex, AbortedTransaction
from kbroker.log.segments.index_files import ABORTED_SUFFIX, INDEX_SUFFIXES, OFFSET_SUFFIX, TIME_SUFFIX
from kbroker.log.segments.offset_index import new_offset_index
from kbroker.log.segments.segment import LOG_SUFFIX
from kbroker.log.segments.time_index import append_if_later, new_time_index
from kbroker.protocol.record_batch import NO_TIMESTAMP, InvalidBatch, ReadBuffer, iter_headers

__all__ = ["CLEANED_SUFFIX", "SWAP_SUFFIX", "CleanedFiles", "CleanedSegment", "complete_swaps"]

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
_ALL_SUFFIXES: Final = (LOG_SUFFIX, *INDEX_SUFFIXES)
_CHUNK: Final = 1 << 20


class CleanedFiles(NamedTuple):
    """Files of a complete cleaned segment, with suffix `.cleaned`. The loop renames or discards them."""

    filesystem: FileSystem
    stem: str
    base_offset: int
    size: int

    def begin_swap(self) -> None:
        """Starts the swap. From now on a start after a crash completes it."""
        self._rename(CLEANED_SUFFIX, SWAP_SUFFIX)

    def end_swap(self) -> None:
        """Ends the swap, after the replaced segments were renamed."""
        self._rename(SWAP_SUFFIX, "")

    def _rename(self, old: str, new: str) -> None:
        for suffix in _ALL_SUFFIXES:
            path = self.stem + suffix
            if suffix != ABORTED_SUFFIX or self.filesystem.exists(path + old):
                self.filesystem.rename(path + old, path + new)

    def discard(self) -> None:
        """Deletes the files: the log has changed, or writing has failed."""
        for suffix in _ALL_SUFFIXES:
            self.filesystem.remove(f"{self.stem}{suffix}{CLEANED_SUFFIX}")


class CleanedSegment:
    """Segment that is being written, by one thread or process."""

    def __init__(
        self, filesystem: FileSystem, directory: str, base_offset: int, *, interval: int, max_entries: int
    ) -> None:
        self._filesystem = filesystem
        self._stem = f"{directory}/{base_offset:020d}"
        self.base_offset = base_offset
        self.size = 0
        self._interval = interval
        self._max_entries = max_entries
        self._offset_index = new_offset_index()
        self._time_index = new_time_index()
        self._bytes_since_entry = 0
        self._max_timestamp = NO_TIMESTAMP
        self._offset_of_max_timestamp = -1
        self._pending: list[ReadBuffer] = []
        self.pending_bytes = 0
        self._files().discard()
        self._file = filesystem.open(f"{self._stem}{LOG_SUFFIX}{CLEANED_SUFFIX}", create=True)
        self._is_open = True

    def __repr__(self) -> str:
        return f"<CleanedSegment {self._stem} size={self.size}>"

    def append(self, batch: ReadBuffer, last_offset: int, max_timestamp: int) -> None:
        """Adds a batch to the indexes, by the rules of Segment. `write` writes its bytes."""
        relative = last_offset - self.base_offset
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp
            self._offset_of_max_timestamp = relative
        if self._bytes_since_entry > self._interval and len(self._offset_index) < self._max_entries:
            self._offset_index.append(relative, self.size + self.pending_bytes)
            append_if_later(self._time_index, self._max_timestamp, self._offset_of_max_timestamp)
            self._bytes_since_entry = 0
        size = len(batch)
        self._bytes_since_entry += size
        self._pending.append(batch)
        self.pending_bytes += size

    def write(self) -> None:
        content = memoryview(b"".join(self._pending))
        self._pending.clear()
        self.pending_bytes = 0
        while content:
            written = self._file.write_at([content], self.size)
            self.size += written
            content = content[written:]

    def finish(self, aborted: Sequence[AbortedTransaction], modified_ms: int) -> CleanedFiles:
        """Writes and fsyncs all files. The modification time is the one of the replaced segment."""
        self.write()
        self._file.sync()
        self._close()
        if self._offset_of_max_timestamp >= 0:
            append_if_later(self._time_index, self._max_timestamp, self._offset_of_max_timestamp)
        filesystem, stem = self._filesystem, self._stem
        filesystem.replace(f"{stem}{OFFSET_SUFFIX}{CLEANED_SUFFIX}", self._offset_index.encode())
        filesystem.replace(f"{stem}{TIME_SUFFIX}{CLEANED_SUFFIX}", self._time_index.encode())
        if aborted:
            index = AbortedIndex(filesystem, f"{stem}{ABORTED_SUFFIX}{CLEANED_SUFFIX}")
            for transaction in aborted:
                index.append(transaction)
            index.write()
            _sync(filesystem, index.path)
        filesystem.set_modified_ms(f"{stem}{LOG_SUFFIX}{CLEANED_SUFFIX}", modified_ms)
        return self._files()

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._file.close()

    def discard(self) -> None:
        """Deletes the files, because writing has failed."""
        self._close()
        self._files().discard()

    def _files(self) -> CleanedFiles:
        return CleanedFiles(self._filesystem, self._stem, self.base_offset, self.size)


def complete_swaps(filesystem: FileSystem, directory: str, names: Iterable[str]) -> bool:
    """Completes the swaps that a crash interrupted. Returns whether there were any.

    Replaced segments are deleted up to the last batch that was kept. Later ones may stay: their records are valid, and
    the next compaction removes them.
    """
    swaps = sorted(name for name in names if name.endswith(SWAP_SUFFIX))
    for name in swaps:
        swapped = name[: -len(SWAP_SUFFIX)]
        if swapped.endswith(LOG_SUFFIX):
            _remove_replaced(filesystem, directory, int(swapped[:20]), _end_offset(filesystem, f"{directory}/{name}"))
    # Logs before their indexes.
    for name in sorted(swaps, key=lambda swap: not swap.endswith(LOG_SUFFIX + SWAP_SUFFIX)):
        filesystem.rename(f"{directory}/{name}", f"{directory}/{name[: -len(SWAP_SUFFIX)]}")
    return bool(swaps)


def _remove_replaced(filesystem: FileSystem, directory: str, base_offset: int, end_offset: int) -> None:
    for name in filesystem.list_names(directory):
        if name.endswith(_ALL_SUFFIXES) and base_offset <= int(name[:20]) < max(end_offset, base_offset + 1):
            filesystem.remove(f"{directory}/{name}")


def _sync(filesystem: FileSystem, path: str) -> None:
    file = filesystem.open(path)
    try:
        file.sync()
    finally:
        file.close()


def _end_offset(filesystem: FileSystem, path: str) -> int:
    """Returns the offset after the last batch; -1 if there is no batch."""
    file = filesystem.open(path)
    try:
        end_offset, position, size = -1, 0, file.size()
        wanted = _CHUNK
        while position < size:
            chunk = file.read_at(wanted, position)
            walked = 0
            for at, header in iter_headers(chunk):
                end_offset, walked = header.last_offset + 1, at + header.size
            if not walked and len(chunk) < wanted:
                break
            position += walked
            wanted = _CHUNK if walked else 2 * wanted
        return end_offset
    except InvalidBatch:
        return end_offset
    finally:
        file.close()
