"""One `.log` file of a partition with its indexes. Knows positions and offsets; never decides what may be appended,
when to roll, or how far a reader may see."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from struct import Struct

from kbroker.errors import StorageFailure
from kbroker.log.aborted_index import AbortedIndex
from kbroker.log.file_cache import CachedFile, FileCache
from kbroker.log.offset_index import new_offset_index, position_at_or_below
from kbroker.log.sorted_index import SortedIndex
from kbroker.log.time_index import append_if_later, last_timestamp, new_time_index
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

__all__ = ["DELETED_SUFFIX", "INDEX_SUFFIXES", "Segment", "file_name"]

LOG_SUFFIX = ".log"
OFFSET_SUFFIX = ".index"
TIME_SUFFIX = ".timeindex"
ABORTED_SUFFIX = ".txnindex"
INDEX_SUFFIXES = (OFFSET_SUFFIX, TIME_SUFFIX, ABORTED_SUFFIX)
DELETED_SUFFIX = ".deleted"

TAIL_BATCHES = 512  # how many of the newest batches are found without reading the file
_SEARCH_CHUNK = 8192
_WALK_CHUNK = 65536
_MAX_RELATIVE_OFFSET = (1 << 31) - 1
_MINIMUM_BATCH_LENGTH = HEADER_SIZE - LOG_OVERHEAD
_BATCH_RANGE = Struct(">qi11xi")  # base offset, batch length, …, last offset delta
_unpack_range = _BATCH_RANGE.unpack_from


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


class Segment:
    """A segment of which nothing is read until it is asked for; `load` makes it the active one."""

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
        self._offset_index: SortedIndex | None = None
        self._time_index: SortedIndex | None = None
        self._tail_lasts: array[int] = array("q")
        self._tail_positions: array[int] = array("i")
        self._tail_floor = -1  # the last offset before the tail
        self.size = -1  # of what readers may see; -1 until somebody asked
        self.next_offset = base_offset
        self.max_timestamp = NO_TIMESTAMP
        self.offset_of_max_timestamp = -1
        self.first_timestamp = NO_TIMESTAMP
        self.created_ms = -1
        self.roll_jitter_ms = 0
        self.bytes_since_entry = 0
        self.entry_count = 0  # of the offset index, while active
        self.last_possible_offset = base_offset + _MAX_RELATIVE_OFFSET
        self.is_active = False
        self.is_new = False  # made since the last flush: its directory entry is not yet durable

    def __repr__(self) -> str:
        return f"<Segment {self._stem} size={self.size}>"

    @classmethod
    def create(
        cls, files: FileCache, directory: str, base_offset: int, interval: int, *, preallocate_bytes: int = 0
    ) -> Segment:
        """A new, empty, active segment. What lies under its name is left over from before a crash or a truncation."""
        segment = cls(files, directory, base_offset, interval)
        for suffix in INDEX_SUFFIXES:
            files.filesystem.remove(segment._stem + suffix)
        handle = segment.file.open(create=True)
        if handle.size():
            handle.truncate(0)
        if preallocate_bytes:
            handle.preallocate(preallocate_bytes)
        segment.size = 0
        segment._offset_index = new_offset_index()
        segment._time_index = new_time_index()
        segment._tail_floor = base_offset - 1
        segment.is_active = segment.is_new = True
        return segment

    @property
    def file_cache(self) -> FileCache:
        return self._files

    @property
    def index_paths(self) -> list[str]:
        return [self._stem + suffix for suffix in INDEX_SUFFIXES]

    def age_ms(self, now_ms: int) -> int:
        """Since it was made, or first used after a start: for batches without timestamps."""
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
        offsets = self._read_index(OFFSET_SUFFIX)
        times = self._read_index(TIME_SUFFIX)
        if offsets is not None and times is not None:
            offset_index, time_index = new_offset_index(offsets), new_time_index(times)
            if not offset_index.values or offset_index.values[-1] < self.ensure_size():
                self._offset_index, self._time_index = offset_index, time_index
                if not self.is_active:
                    self._mend_time_index()
                return
        self.rebuild_indexes()

    def _mend_time_index(self) -> None:
        """The closing entry is written at the roll, but not fsynced with it: the batches behind the others tell it."""
        assert self._offset_index is not None
        assert self._time_index is not None
        start = self._offset_index.values[-1] if len(self._offset_index) else 0
        for _position, header in self.headers(start):
            append_if_later(self._time_index, header.max_timestamp, header.last_offset - self.base_offset)

    def _read_index(self, suffix: str) -> bytes | None:
        try:
            return self._files.filesystem.read(self._stem + suffix)
        except FileNotFoundError:
            return None

    def read_written_indexes(self) -> tuple[SortedIndex, SortedIndex] | None:
        """What the files hold, if all of it makes sense. For recovery, which must not trust it."""
        offset_index = new_offset_index(self._read_index(OFFSET_SUFFIX) or b"")
        time_index = new_time_index(self._read_index(TIME_SUFFIX) or b"")
        return (offset_index, time_index) if offset_index.is_sane() and time_index.is_sane() else None

    def start_indexes(self, offset_index: SortedIndex, time_index: SortedIndex, *, floor: int) -> None:
        """Goes on from these; whatever the files hold is replaced at the next write. The tail begins after `floor`."""
        self._offset_index, self._time_index = offset_index, time_index
        offset_index.written = time_index.written = -1
        self.max_timestamp = last_timestamp(time_index)
        self.offset_of_max_timestamp = time_index.values[-1] + self.base_offset if len(time_index) else -1
        self.bytes_since_entry = 0
        self._forget_tail(floor)

    def rebuild_indexes(self) -> None:
        """From the headers in the file, for an index that is lost or makes no sense."""
        size = self.ensure_size()
        self.start_indexes(new_offset_index(), new_time_index(), floor=self.base_offset - 1)
        for position, header in self.headers(0, size):
            self.note(position, header.size, header.last_offset, header.max_timestamp)
        if not self.is_active:
            self._note_largest_timestamp()
            self._forget_tail(self.next_offset - 1)

    def write_indexes(self) -> list[str]:
        """Brings the files up to date, without fsync, and says which of them were touched."""
        touched = []
        for index, suffix in ((self._offset_index, OFFSET_SUFFIX), (self._time_index, TIME_SUFFIX)):
            if index is not None and (index.written != len(index) or self.is_new):
                path = self._stem + suffix
                self._write_index(index, path)
                touched.append(path)
        if self.aborted.write():
            touched.append(self.aborted.path)
        return touched

    def _write_index(self, index: SortedIndex, path: str) -> None:
        filesystem = self._files.filesystem
        if index.written < 0:
            filesystem.replace(path, index.encode(), sync=False)
        else:
            content = index.encode(index.written)
            file = filesystem.open(path, create=True)
            try:
                done = 0
                while done < len(content):
                    done += file.write_at([content[done:]], index.written * index.entry_size + done)
            finally:
                file.close()
        index.written = len(index)

    def become_inactive(self) -> None:
        """The last time index entry, so that the file tells the segment's largest timestamp; then both to disk."""
        self._note_largest_timestamp()
        self.write_indexes()
        handle = self.file.open()
        if handle.size() > self.size:
            handle.truncate(self.size)  # what preallocation left over

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
        """Takes a batch into the indexes. Hot path; the bytes themselves are `write`'s."""
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
        """All of it, or StorageFailure and nothing of it: a short write is cut off again."""
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
                raise StorageFailure(f"{self.file.path} has gone") from error
        return self.size

    def find(self, offset: int) -> int:
        """Where the first batch begins whose last offset is not below `offset`; -1 if it is in no batch of here."""
        return self.find_batch(offset)[0]

    def find_batch(self, offset: int) -> tuple[int, int]:
        """The position that `find` tells, and the size of the batch there."""
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
                    raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"{self.file.path}: no batch at {position + at}")
                at += LOG_OVERHEAD + batch_length
            if not at:
                break  # the file ends before its size
            position += at
        return -1, 0

    def offset_behind(self, position: int, otherwise: int) -> int:
        """One that no batch reaches which begins before the position; `otherwise` where the index does not know."""
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
        """Position and header of every whole batch from `position` on, CRCs unverified."""
        limit = self.ensure_size() if end is None else end
        chunk, start = b"", position
        while limit - position >= HEADER_SIZE:
            at = position - start
            if at + HEADER_SIZE > len(chunk):
                chunk, start, at = self.file.open().read_at(min(_WALK_CHUNK, limit - position), position), position, 0
            header = read_header(chunk, at)
            if header.magic != 2 or header.batch_length < _MINIMUM_BATCH_LENGTH:
                raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"{self.file.path}: no batch at {position}")
            if position + header.size > limit:
                return
            yield position, header
            position += header.size

    def load(self) -> None:
        """What an appender has to know, from the indexes and the batches behind their last entry."""
        size = self.ensure_size()
        self.is_active = True
        offset_index, time_index = self.offset_index, self.time_index
        self.entry_count = len(offset_index)
        if self._tail_lasts:
            return  # the indexes had to be rebuilt, and that has read everything
        self.max_timestamp = last_timestamp(time_index)
        self.offset_of_max_timestamp = time_index.values[-1] + self.base_offset if len(time_index) else -1
        start = end = offset_index.values[-1] if len(offset_index) else 0
        self.bytes_since_entry = 0
        for position, header in self.headers(start, size):
            if position == start:
                self._tail_floor = header.base_offset - 1
            self.note(position, header.size, header.last_offset, header.max_timestamp)
            end = position + header.size
        if end != size:
            raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"{self.file.path} ends within a batch")
        if size and self.first_timestamp == NO_TIMESTAMP:
            self.first_timestamp = self.header_at(0).max_timestamp

    def largest_timestamp(self) -> int:
        """Of a closed segment: what its time index ends with, else when the file was last written."""
        timestamp = self.max_timestamp if self.is_active else last_timestamp(self.time_index)
        return timestamp if timestamp >= 0 else self._files.filesystem.modified_ms(self.file.path)

    # Taking away

    def truncate_to_position(self, position: int, next_offset: int) -> None:
        """Cuts the file, bumps its generation, and goes on as the active segment from here."""
        handle = self.file.open()
        self.file.generation += 1
        handle.truncate(position)
        self.size = position
        self.rewind(next_offset)
        self.aborted.truncate_to(next_offset)

    def rewind(self, next_offset: int) -> None:
        """Forgets in memory what lies behind `size`, where `next_offset` comes next."""
        offset_index, time_index = self.offset_index, self.time_index
        offset_index.truncate_values_from(self.size)
        time_index.truncate_values_from(next_offset - self.base_offset)
        self._forget_tail(self.base_offset - 1)
        self.max_timestamp, self.offset_of_max_timestamp = NO_TIMESTAMP, -1
        self.first_timestamp = NO_TIMESTAMP
        self.load()
        self.next_offset = next_offset

    def mark_deleted(self) -> list[CachedFile]:
        """Renames every file of the segment; the caller unlinks what it gets when the delay is over."""
        filesystem = self._files.filesystem
        doomed = [self.file]
        self.file.owner = None
        for suffix in INDEX_SUFFIXES:
            path = self._stem + suffix
            if filesystem.exists(path):
                filesystem.rename(path, path + DELETED_SUFFIX)
                doomed.append(CachedFile(self._files, path + DELETED_SUFFIX))
        filesystem.rename(self.file.path, self.file.path + DELETED_SUFFIX)
        self.file.path += DELETED_SUFFIX
        return doomed

    def move_to(self, files: FileCache) -> None:
        self.file.move_to(files)
        self._files = files

    def close(self) -> None:
        self.file.close()
