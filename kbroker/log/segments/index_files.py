"""Files of a segment's offset index and time index: read, written, removed. The segment decides when and why."""

from __future__ import annotations

from typing import Final

from kbroker.log.files.filesystem import FileSystem
from kbroker.log.segments.offset_index import new_offset_index
from kbroker.log.segments.sorted_index import SortedIndex
from kbroker.log.segments.time_index import new_time_index

__all__ = ["ABORTED_SUFFIX", "INDEX_SUFFIXES", "OFFSET_SUFFIX", "TIME_SUFFIX", "IndexFiles"]

OFFSET_SUFFIX: Final = ".index"
TIME_SUFFIX: Final = ".timeindex"
ABORTED_SUFFIX: Final = ".txnindex"
INDEX_SUFFIXES: Final = (OFFSET_SUFFIX, TIME_SUFFIX, ABORTED_SUFFIX)


class IndexFiles:
    """`stem` is the path of the segment without a suffix."""

    __slots__ = ("_filesystem", "_stem")

    def __init__(self, filesystem: FileSystem, stem: str) -> None:
        self._filesystem = filesystem
        self._stem = stem

    @property
    def paths(self) -> list[str]:
        """Returns the paths of all indexes of the segment, the aborted index included."""
        return [self._stem + suffix for suffix in INDEX_SUFFIXES]

    def read(self) -> tuple[SortedIndex, SortedIndex] | None:
        """Returns the offset index and the time index; None if one of the files does not exist."""
        offsets, times = self._read(OFFSET_SUFFIX), self._read(TIME_SUFFIX)
        if offsets is None or times is None:
            return None
        return new_offset_index(offsets), new_time_index(times)

    def read_sorted(self) -> tuple[SortedIndex, SortedIndex] | None:
        """Like `read`, after a crash: a missing file is an empty index; None if entries are not in order."""
        offset_index = new_offset_index(self._read(OFFSET_SUFFIX) or b"")
        time_index = new_time_index(self._read(TIME_SUFFIX) or b"")
        return (offset_index, time_index) if offset_index.is_sorted() and time_index.is_sorted() else None

    def _read(self, suffix: str) -> bytes | None:
        try:
            return self._filesystem.read(self._stem + suffix)
        except FileNotFoundError:
            return None

    def write(self, offset_index: SortedIndex | None, time_index: SortedIndex | None, *, is_new: bool) -> list[str]:
        """Writes the entries that the files do not have yet; with `is_new` a file is created even without entries.

        Does not fsync. Returns the paths of the files that were written.
        """
        written = []
        for index, suffix in ((offset_index, OFFSET_SUFFIX), (time_index, TIME_SUFFIX)):
            if index is not None and (index.written != len(index) or is_new):
                self._write(index, self._stem + suffix)
                written.append(self._stem + suffix)
        return written

    def _write(self, index: SortedIndex, path: str) -> None:
        if index.written < 0:
            self._filesystem.replace(path, index.encode(), sync=False)
        else:
            content = index.encode(index.written)
            file = self._filesystem.open(path, create=True)
            try:
                done = 0
                while done < len(content):
                    done += file.write_at([content[done:]], index.written * index.entry_size + done)
            finally:
                file.close()
        index.written = len(index)

    def remove(self) -> None:
        for path in self.paths:
            self._filesystem.remove(path)
