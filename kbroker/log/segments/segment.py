"""Segment of a log: a `.log` file with its indexes. Knows positions and offsets; never decides whether a batch may be
appended, when to roll, or up to which offset a reader may read."""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

from kbroker.errors import StorageFailure
from kbroker.log.files.file_cache import CachedFile, FileCache
from kbroker.log.segments.aborted_index import AbortedIndex
from kbroker.log.segments.index_files import ABORTED_SUFFIX, IndexFiles
from kbroker.log.segments.offset_index import new_offset_index, position_at_or_below
from kbroker.log.segments.sorted_index import SortedIndex
from kbroker.log.segments.time_index import append_if_later, last_timestamp, new_time_index
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    BatchHeader,
    InvalidBatch,
    ReadBuffer,
    read_header,
)

__all__ = ["DELETED_SUFFIX", "LOG_SUFFIX", "MAX_RELATIVE_OFFSET", "Segment", "file_name"]

LOG_SUFFIX: Final = ".log"
DELETED_SUFFIX: Final = ".deleted"

TAIL_BATCHES: Final = 512  # so many of the newest batches are found without reading the file
_SEARCH_CHUNK: Final = 8192
_WALK_CHUNK: Final = 65536
MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1
_MINIMUM_BATCH_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD
_BATCH_RANGE: Final = Struct(">qi11xi")  # base offset, batch length, …, last offset delta
_unpack_range: Final = _BATCH_RANGE.unpack_from


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


class Segment:
    """Reads its files at the first use; `load` makes it the active segment.

    The tail is the last offset and the position of each of the newest batches, kept in memory while active.
    """

    __slots__ = (
        "_files",
        "_interval",
        "_offset_index",
        "_stem",
        "_tail_floor",
        "_tail_lasts",
        "_tail_positions",
        "_time_index",
        "aborted",
        "base_offset",
        "bytes_since_entry",
        "created_ms",
        "entry_count",
        "file",
        "first_timestamp",
        "index_files",
        "is_active",
        "is_new",
        "last_possible_offset",
        "max_timestamp",
        "next_offset",
        "offset_of_max_timestamp",
        "roll_jitter_ms",
        "size",
    )

    def __init__(self, files: FileCache, directory: str, base_offset: int, interval: int) -> None:
        self._files = files
        self._interval = interval
        self._stem = f"{directory}/{base_offset:020d}"
        self.base_offset = base_offset
        self.file = CachedFile(files, self._stem + LOG_SUFFIX)
        self.file.owner = self
        self.aborted = AbortedIndex(files.filesystem, self._stem + ABORTED_SUFFIX)
        self.index_files = IndexFiles(files.filesystem, self._stem)
        self._offset_index: SortedIndex | None = None
        self._time_index: SortedIndex | None = None
        self._tail_lasts: array[int] = array("q")
        self._tail_positions: array[int] = array("i")
        self._tail_floor = -1  # the last offset before the tail
        self.size = -1  # of the bytes that readers may see; -1: not known yet, see `ensure_size`
        self.next_offset = base_offset
        self.max_timestamp = NO_TIMESTAMP
        self.offset_of_max_timestamp = -1
        self.first_timestamp = NO_TIMESTAMP
        self.created_ms = -1
        self.roll_jitter_ms = 0
        self.bytes_since_entry = 0
        self.entry_count = 0  # of the offset index, while active
        self.last_possible_offset = base_offset + MAX_RELATIVE_OFFSET
        self.is_active = False
        self.is_new = False  # created since the last flush: the flush has to fsync the directory

    def __repr__(self) -> str:
        return f"<Segment {self._stem} size={self.size}>"

    @classmethod
    def create(
        cls, files: FileCache, directory: str, base_offset: int, *, interval: int, preallocate_bytes: int = 0
    ) -> Segment:
        """Creates an empty, active segment. Files of the same name, left by a crash or a truncation, are emptied."""
        segment = cls(files, directory, base_offset, interval)
        segment.index_files.remove()
        try:
            handle = segment.file.open(create=True)
            if handle.size():
                handle.truncate(0)
            if preallocate_bytes:
                handle.preallocate(preallocate_bytes)
        except StorageFailure:
            segment._discard_file()
            raise
        segment.size = 0
        segment._offset_index = new_offset_index()
        segment._time_index = new_time_index()
        segment._tail_floor = base_offset - 1
        segment.is_active = segment.is_new = True
        return segment

    def _discard_file(self) -> None:
        """Deletes a file that could not be created completely: a start would take it for the active segment."""
        with contextlib.suppress(StorageFailure):
            self.file.unlink()

    def age_ms(self, now_ms: int) -> int:
        """Returns the time since creation, or since the first use after a start. For batches without timestamps."""
        if self.created_ms < 0:
            self.created_ms = now_ms
        return now_ms - self.created_ms

    # Indexes

    @property
    def offset_index(self) -> SortedIndex:
        if self._offset_index is None:
            self._load_indexes()
        assert self._offset_index is not None
        return self._offset_index

    @property
    def time_index(self) -> SortedIndex:
        if self._time_index is None:
            self._load_indexes()
        assert self._time_index is not None
        return self._time_index

    def _load_indexes(self) -> None:
        indexes = self.index_files.read()
        if indexes is not None:
            offset_index, time_index = indexes
            if not offset_index.values or offset_index.values[-1] < self.ensure_size():
                self._offset_index, self._time_index = offset_index, time_index
                if not self.is_active:
                    self._complete_time_index()
                return
        self.rebuild_indexes()

    def _complete_time_index(self) -> None:
        """Adds the last entry from the batches: a roll writes it, but a crash may happen before its fsync."""
        assert self._offset_index is not None
        assert self._time_index is not None
        start = self._offset_index.values[-1] if len(self._offset_index) else 0
        for _position, header in self.headers(start):
            append_if_later(self._time_index, header.max_timestamp, header.last_offset - self.base_offset)

    def start_indexes(self, offset_index: SortedIndex, time_index: SortedIndex, *, floor: int) -> None:
        """Continues with these indexes; the next write replaces the files. The tail begins after offset `floor`."""
        self._offset_index, self._time_index = offset_index, time_index
        offset_index.written = time_index.written = -1
        self.max_timestamp = last_timestamp(time_index)
        self.offset_of_max_timestamp = time_index.values[-1] + self.base_offset if len(time_index) else -1
        self.bytes_since_entry = 0
        self._forget_tail(floor)

    def rebuild_indexes(self) -> None:
        """Builds the indexes from the batch headers, because an index file is missing or wrong."""
        size = self.ensure_size()
        self.start_indexes(new_offset_index(), new_time_index(), floor=self.base_offset - 1)
        for position, header in self.headers(0, size):
            self.note(position, header.size, header.last_offset, header.max_timestamp)
        if not self.is_active:
            self._note_largest_timestamp()
            self._forget_tail(self.next_offset - 1)

    def write_indexes(self) -> list[str]:
        """Writes new index entries to the files, without fsync. Returns the paths of the files that were written."""
        written = self.index_files.write(self._offset_index, self._time_index, is_new=self.is_new)
        if self.aborted.write():
            written.append(self.aborted.path)
        return written

    def become_inactive(self) -> None:
        """Adds the largest timestamp to the time index, writes the indexes, and releases preallocated space."""
        self._note_largest_timestamp()
        self.write_indexes()
        handle = self.file.open()
        if handle.size() > self.size:
            handle.truncate(self.size)

    def _note_largest_timestamp(self) -> None:
        if self.offset_of_max_timestamp >= 0:
            append_if_later(self.time_index, self.max_timestamp, self.offset_of_max_timestamp - self.base_offset)

    def on_file_evicted(self) -> None:
        if not self.is_active:
            unwritten = [i for i in (self._offset_index, self._time_index) if i is not None and i.written != len(i)]
            if not unwritten:
                self._offset_index = self._time_index = None

    # Appending

    def note(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Adds a batch to indexes and tail, before or after `write` writes its bytes. Hot path."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.offset_of_max_timestamp = last_offset
        since = self.bytes_since_entry
        if since > self._interval:
            self.offset_index.append(last_offset - self.base_offset, position)
            append_if_later(self.time_index, self.max_timestamp, self.offset_of_max_timestamp - self.base_offset)
            self.entry_count = len(self.offset_index)
            since = 0
        self.bytes_since_entry = since + size
        lasts = self._tail_lasts
        lasts.append(last_offset)
        self._tail_positions.append(position)
        if len(lasts) > TAIL_BATCHES:
            self._trim_tail()
        self.next_offset = last_offset + 1
        if not position:
            self.first_timestamp = max_timestamp

    def write(self, buffers: Sequence[ReadBuffer], size: int) -> None:
        """Appends `size` bytes. Raises StorageFailure if the write fails: the file is then as it was before."""
        file = self.file
        handle = file.handle
        if handle is None:
            handle = file.open()
        file.is_recent = True
        try:
            written = handle.write_at(buffers, self.size)
            if written != size:
                self._write_rest(buffers, written, size)
        except StorageFailure:
            handle.truncate(self.size)
            raise
        self.size += size

    def _write_rest(self, buffers: Sequence[ReadBuffer], written: int, size: int) -> None:
        handle = self.file.open()
        rest = [memoryview(buffer) for buffer in buffers]
        skip = written
        while written < size:
            while skip >= len(rest[0]):
                skip -= len(rest.pop(0))
            rest[0] = rest[0][skip:]
            skip = handle.write_at(rest, self.size + written)
            written += skip

    def _trim_tail(self) -> None:
        half = TAIL_BATCHES // 2
        self._tail_floor = self._tail_lasts[half - 1]
        del self._tail_lasts[:half]
        del self._tail_positions[:half]

    def _forget_tail(self, floor: int) -> None:
        self._tail_floor = floor
        del self._tail_lasts[:]
        del self._tail_positions[:]

    # Reading

    def ensure_size(self) -> int:
        if self.size < 0:
            try:
                self.size = self._files.filesystem.size(self.file.path)
            except FileNotFoundError as error:
                raise StorageFailure(f"{self.file.path} does not exist any more") from error
        return self.size

    def find(self, offset: int) -> int:
        """Returns the position of the first batch whose last offset is not below `offset`; -1 if there is none."""
        return self.find_batch(offset)[0]

    def find_batch(self, offset: int) -> tuple[int, int]:
        """Like `find`, with the size of the batch."""
        if offset > self._tail_floor and (lasts := self._tail_lasts):
            positions = self._tail_positions
            entry = bisect_left(lasts, offset)
            if entry >= len(lasts):
                return -1, 0
            position = positions[entry]
            return position, (positions[entry + 1] if entry + 1 < len(positions) else self.size) - position
        return self._search(offset)

    def _search(self, offset: int) -> tuple[int, int]:
        position = position_at_or_below(self.offset_index, offset - self.base_offset)
        size = self.ensure_size()
        handle = self.file.open()
        while size - position >= HEADER_SIZE:
            chunk = handle.read_at(min(_SEARCH_CHUNK, size - position), position)
            at, limit = 0, len(chunk) - _BATCH_RANGE.size
            while at <= limit:
                base_offset, batch_length, last_offset_delta = _unpack_range(chunk, at)
                if base_offset + last_offset_delta >= offset:
                    return position + at, LOG_OVERHEAD + batch_length
                if batch_length < _MINIMUM_BATCH_LENGTH:
                    raise InvalidBatch(
                        ErrorCode.CORRUPT_MESSAGE, f"{self.file.path} has no batch at position {position + at}"
                    )
                at += LOG_OVERHEAD + batch_length
            if not at:
                break  # the file is shorter than `size`
            position += at
        return -1, 0

    def offset_behind(self, position: int, *, otherwise: int) -> int:
        """Returns an offset above all batches that begin before `position`; `otherwise` if the index has none."""
        index = self.offset_index
        entry = bisect_left(index.values, position)
        return self.base_offset + index.keys[entry] + 1 if entry < len(index) else otherwise

    def batch_size_at(self, position: int) -> int:
        length = self.file.open().read_at(4, position + 8)
        return int.from_bytes(length, "big", signed=True) + LOG_OVERHEAD

    def header_at(self, position: int) -> BatchHeader:
        return read_header(self.file.open().read_at(HEADER_SIZE, position))

    def batch_at(self, position: int) -> bytes:
        return self.file.open().read_at(self.batch_size_at(position), position)

    def headers(self, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """Yields position and header of every complete batch from `position` on. Does not check CRCs."""
        limit = self.ensure_size() if end is None else end
        chunk, start = b"", position
        while limit - position >= HEADER_SIZE:
            at = position - start
            if at + HEADER_SIZE > len(chunk):
                chunk, start, at = self.file.open().read_at(min(_WALK_CHUNK, limit - position), position), position, 0
            header = read_header(chunk, at)
            if header.magic != 2 or header.batch_length < _MINIMUM_BATCH_LENGTH:
                raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"{self.file.path} has no batch at position {position}")
            if position + header.size > limit:
                return
            yield position, header
            position += header.size

    def load(self) -> None:
        """Becomes the active segment: reads the indexes and the batches after the last index entry.

        A follower of Apache Kafka before 3.9.1 indexes a whole fetch by the position of its first batch and the last
        offset of its last batch (KAFKA-806). Such batches get no entries here: keys have to grow.

        Raises InvalidBatch if the file does not end with a complete batch.
        """
        size = self.ensure_size()
        self.is_active = True
        offset_index, time_index = self.offset_index, self.time_index
        self.entry_count = len(offset_index)
        if self._tail_lasts:
            return  # the indexes were rebuilt, which has read all batches
        self.max_timestamp = last_timestamp(time_index)
        self.offset_of_max_timestamp = time_index.values[-1] + self.base_offset if len(time_index) else -1
        start = end = offset_index.values[-1] if len(offset_index) else 0
        last_indexed = offset_index.keys[-1] + self.base_offset if len(offset_index) else -1
        self.bytes_since_entry = 0
        for position, header in self.headers(start, size):
            if position == start:
                self._tail_floor = header.base_offset - 1
            self.note(position, header.size, header.last_offset, header.max_timestamp)
            if header.last_offset < last_indexed:
                self.bytes_since_entry = 0
            end = position + header.size
        if end != size:
            raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"{self.file.path} ends with an incomplete batch")
        if size and self.first_timestamp == NO_TIMESTAMP:
            self.first_timestamp = self.header_at(0).max_timestamp

    def largest_timestamp(self) -> int:
        """Returns the largest timestamp in ms; without timestamps, the time when the file was last written."""
        timestamp = self.max_timestamp if self.is_active else last_timestamp(self.time_index)
        return timestamp if timestamp >= 0 else self._files.filesystem.modified_ms(self.file.path)

    # Truncating and deleting

    def truncate_to_position(self, position: int, *, next_offset: int) -> None:
        """Truncates the file and continues as the active segment. Slices of the file become invalid."""
        handle = self.file.open()
        self.file.generation += 1
        handle.truncate(position)
        self.size = position
        self.rewind(next_offset)
        self.aborted.truncate_to(next_offset)

    def rewind(self, next_offset: int) -> None:
        """Forgets everything in memory beyond `size`; the next batch gets `next_offset`."""
        offset_index, time_index = self.offset_index, self.time_index
        offset_index.truncate_values_from(self.size)
        offset_index.truncate_keys_from(next_offset - self.base_offset)  # see `load` for entries of Apache Kafka
        time_index.truncate_values_from(next_offset - self.base_offset)
        self._forget_tail(self.base_offset - 1)
        self.max_timestamp, self.offset_of_max_timestamp = NO_TIMESTAMP, -1
        self.first_timestamp = NO_TIMESTAMP
        self.load()
        self.next_offset = next_offset

    def mark_deleted(self) -> list[CachedFile]:
        """Renames every file of the segment and returns the files, which the caller deletes after the delay."""
        filesystem = self._files.filesystem
        deleted = [self.file]
        self.file.owner = None
        for path in self.index_files.paths:
            if filesystem.exists(path):
                filesystem.rename(path, path + DELETED_SUFFIX)
                deleted.append(CachedFile(self._files, path + DELETED_SUFFIX))
        filesystem.rename(self.file.path, self.file.path + DELETED_SUFFIX)
        self.file.path += DELETED_SUFFIX
        return deleted

    def unlink(self) -> None:
        """Deletes all files of the segment at once. Slices of the file become invalid."""
        self.file.generation += 1
        self.file.unlink()
        self.index_files.remove()

    def move_to(self, files: FileCache) -> None:
        self.file.move_to(files)
        self._files = files

    def close(self) -> None:
        self.file.close()
