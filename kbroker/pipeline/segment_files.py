"""Segment files of a data directory, read without a broker: finds them, prunes them by their indexes, decodes them.

Only reads, so a copy on a read-only file system will do. A directory that a broker is writing can be read up to the
last complete batch. Knows no Spark.
"""

from __future__ import annotations

import mmap
import os
import re
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from kbroker.errors import UserError
from kbroker.log.files.directory_metadata import split_partition_name
from kbroker.log.files.filesystem import OsFileSystem
from kbroker.log.producers.producer_snapshot import SNAPSHOT_SUFFIX, CorruptSnapshot, decode_snapshot
from kbroker.log.segments.aborted_index import AbortedIndex
from kbroker.log.segments.index_files import ABORTED_SUFFIX, IndexFiles
from kbroker.log.segments.offset_index import new_offset_index, position_at_or_below
from kbroker.log.segments.segment import LOG_SUFFIX
from kbroker.log.segments.time_index import last_timestamp, new_time_index
from kbroker.names import is_internal_topic
from kbroker.pipeline.arrow.decoding import RowFilter, decode_batches, to_arrow
from kbroker.protocol.record_batch import (
    HEADER_SIZE,
    BatchHeader,
    InvalidBatch,
    iter_headers,
    read_header,
    validate_stored_batch,
)
from kbroker.protocol.records import iter_records, read_end_transaction_marker

__all__ = ["SegmentSelection", "SegmentTask", "find_segments", "read_segment"]

CHUNK_BYTES: Final = 4 << 20
_SEGMENT_NAME: Final = re.compile(r"(\d{20})\.log")
_LARGEST_DATA: Final = 64 << 20  # decompressed records that are decoded at once


class AbortedRange(NamedTuple):
    """Transaction of a producer from its first offset to its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class SegmentSelection(NamedTuple):
    """Selection of records. Without topics and pattern: all topics but Kafka's internal ones."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    filter: RowFilter = RowFilter()
    read_committed: bool = False


class SegmentTask(NamedTuple):
    """Part of one segment file, for one task."""

    path: str
    topic: str
    partition: int
    start: int
    end: int
    """Positions in the file: the first batch to read, and the end of the last one."""
    filter: RowFilter
    aborted: tuple[AbortedRange, ...] = ()


def find_segments(directory: str, selection: SegmentSelection) -> list[SegmentTask]:
    """Returns one task for each segment that may have records of the selection.

    Raises UserError if the directory or a topic does not exist.
    """
    root = Path(directory.removeprefix("file://"))
    try:
        names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    except OSError as problem:
        raise UserError(f"Cannot read the data directory {root}: {problem.strerror}.") from None
    partitions = [(found, name) for name in names if (found := split_partition_name(name)) is not None]
    if not partitions:
        raise UserError(f"{root} has no partitions: pass a broker's data directory, or a copy of it.")
    missing = set(selection.topics) - {topic for (topic, _), _ in partitions}
    if missing:
        raise UserError(f"{root} has no topic {', '.join(sorted(missing))}.")
    tasks: list[SegmentTask] = []
    for (topic, partition), name in partitions:
        if _is_selected(topic, selection):
            tasks += _PartitionFiles(str(root / name), topic=topic, partition=partition).tasks(selection)
    return tasks


def _is_selected(topic: str, selection: SegmentSelection) -> bool:
    if selection.topics:
        return topic in selection.topics
    if selection.pattern is not None:
        return re.fullmatch(selection.pattern, topic) is not None
    return not is_internal_topic(topic)


class _PartitionFiles:
    """Segments of one partition, in the order of their offsets."""

    def __init__(self, path: str, *, topic: str, partition: int) -> None:
        self._path = path
        self._topic = topic
        self._partition = partition
        found = (_SEGMENT_NAME.fullmatch(name) for name in os.listdir(path))
        self._bases = sorted(int(name[1]) for name in found if name is not None)

    def tasks(self, selection: SegmentSelection) -> list[SegmentTask]:
        limits = selection.filter
        aborted: list[AbortedRange] = []
        if selection.read_committed:
            aborted, stable_offset = self._transactions()
            if stable_offset is not None:
                end = stable_offset if limits.end_offset is None else min(limits.end_offset, stable_offset)
                limits = limits._replace(end_offset=end)
        tasks: list[SegmentTask] = []
        for number, base in enumerate(self._bases):
            following = self._bases[number + 1] if number + 1 < len(self._bases) else None
            if following is not None and limits.start_offset is not None and following <= limits.start_offset:
                continue
            if limits.end_offset is not None and base >= limits.end_offset:
                break
            start, end = self._positions(base, limits, is_last=following is None)
            if start < end:
                concerned = tuple(
                    each
                    for each in aborted
                    if each.last_offset >= base and (following is None or each.first_offset < following)
                )
                task = SegmentTask(
                    self._stem(base) + LOG_SUFFIX, self._topic, self._partition, start, end, limits, concerned
                )
                tasks.append(task)
        return tasks

    def _stem(self, base: int) -> str:
        return f"{self._path}/{base:020d}"

    def _positions(self, base: int, limits: RowFilter, *, is_last: bool) -> tuple[int, int]:
        """Returns where to begin and to end in the file; the same position twice if no record can be within limits."""
        stem = self._stem(base)
        indexes = IndexFiles(OsFileSystem(), stem).read_sorted() or (new_offset_index(), new_time_index())
        offset_index, time_index = indexes
        size = os.path.getsize(stem + LOG_SUFFIX)
        indexed = offset_index.values[-1] if len(offset_index) and offset_index.values[-1] < size else 0
        end, largest_ms = size, last_timestamp(time_index)
        # The last batches have no index entry: the end of the last segment and its largest timestamp are there.
        for position, header in self._headers(base, indexed, is_last=is_last):
            end = position + header.size
            largest_ms = max(largest_ms, header.max_timestamp)
        start = 0
        if limits.start_offset is not None and limits.start_offset > base:
            start = position_at_or_below(offset_index, limits.start_offset - base)
        if limits.start_ms is not None:
            if largest_ms < limits.start_ms:
                return end, end
            before = bisect_left(time_index.keys, limits.start_ms) - 1
            if before >= 0:
                start = max(start, position_at_or_below(offset_index, time_index.values[before]))
        if limits.end_offset is not None:
            # The first entry at or above the end: its batch may still hold earlier records.
            entry = bisect_left(offset_index.keys, limits.end_offset - base)
            if entry + 1 < len(offset_index):
                end = min(end, offset_index.values[entry + 1])
        return start, end

    def _headers(self, base: int, position: int, *, is_last: bool) -> Iterator[tuple[int, BatchHeader]]:
        """Yields the complete batches from a position on. The last segment may end with space that is not used yet."""
        path = self._stem(base) + LOG_SUFFIX
        with _mapped(path) as content:
            try:
                for at, header in iter_headers(content, position):
                    position = at + header.size
                    yield at, header
            except InvalidBatch as problem:
                if not is_last or content[position : position + HEADER_SIZE].strip(b"\0"):
                    raise _damaged(path, position, problem) from None

    def _transactions(self) -> tuple[list[AbortedRange], int | None]:
        """Returns the aborted transactions, and the first offset of the transactions that are still open, if any.

        Segments that are complete have an index of aborted transactions. The index of the last one may not be written
        yet, so its batches are read: those before it come from the producer snapshot at its begin.
        """
        aborted = [
            AbortedRange(*entry[:3])
            for base in self._bases[:-1]
            for entry in AbortedIndex(OsFileSystem(), self._stem(base) + ABORTED_SUFFIX).entries
        ]
        opened: dict[int, int] = {}
        bases = self._bases[-1:]
        if len(self._bases) > 1:
            snapshot = self._open_transactions(self._bases[-1])
            if snapshot is None:  # a copy without snapshots: read all batches
                aborted, bases = [], self._bases
            else:
                opened = snapshot
        for base in bases:
            self._follow(base, opened, aborted)
        return aborted, min(opened.values(), default=None)

    def _open_transactions(self, base: int) -> dict[int, int] | None:
        try:
            entries = decode_snapshot(Path(self._stem(base) + SNAPSHOT_SUFFIX).read_bytes())
        except (OSError, CorruptSnapshot):
            return None
        return {
            producer_id: entry.current_txn_first_offset
            for producer_id, entry in entries
            if entry.current_txn_first_offset >= 0
        }

    def _follow(self, base: int, opened: dict[int, int], aborted: list[AbortedRange]) -> None:
        path = self._stem(base) + LOG_SUFFIX
        for position, header in self._headers(base, 0, is_last=base == self._bases[-1]):
            if not header.is_transactional:
                continue
            if not header.is_control:
                opened.setdefault(header.producer_id, header.base_offset)
                continue
            with open(path, "rb") as file:
                file.seek(position)
                batch = file.read(header.size)
            marker = read_end_transaction_marker(next(iter_records(batch)))
            first = opened.pop(header.producer_id, None)
            if marker is not None and not marker.is_commit and first is not None:
                aborted.append(AbortedRange(header.producer_id, first, header.base_offset))


@contextmanager
def _mapped(path: str) -> Iterator[Any]:
    """Yields the content of a file as a memory map; b"" for an empty file."""
    with _open(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield content


def _open(path: str) -> Any:
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist any more: the broker has deleted the segment. Read later offsets, or a copy of the "
            "data directory."
        ) from None
    except OSError as problem:
        raise UserError(f"Cannot read {path}: {problem.strerror}.") from None


def _damaged(path: str, position: int, problem: Exception) -> UserError:
    return UserError(f"{path} is damaged at position {position}: {problem}. Read another replica or an earlier copy.")


def read_segment(task: SegmentTask, *, has_headers: bool = False, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Any]:
    """Yields Arrow batches of the records of a task. Checks the CRC of each batch that it decodes."""
    with _open(task.path) as file:
        position, wanted = task.start, chunk_bytes
        while position < task.end:
            # From the first incomplete batch on: joining its begin to the rest would copy the whole chunk.
            chunk = os.pread(file.fileno(), min(wanted, task.end - position), position)
            used, batches = _select(task, chunk, position)
            if not used and len(chunk) < wanted:
                raise _damaged(task.path, position, EOFError("the file ends within a batch"))
            wanted = chunk_bytes if used else _size_of_first(chunk)
            for group in _groups(batches):
                try:
                    records = decode_batches(chunk, group)
                except InvalidBatch as problem:
                    raise _damaged(task.path, position + group[0][0], problem) from None
                rows = task.filter.rows(records)
                if rows is not None:
                    records = records.take(rows)
                if len(records.offsets):
                    yield to_arrow(records, task.topic, task.partition, has_headers=has_headers)
            position += used


def _size_of_first(chunk: bytes) -> int:
    return read_header(chunk).size if len(chunk) >= HEADER_SIZE else HEADER_SIZE


def _select(task: SegmentTask, chunk: bytes, position: int) -> tuple[int, list[tuple[int, BatchHeader]]]:
    """Returns the size of the complete batches of a chunk, and those that may have records of the task."""
    chosen: list[tuple[int, BatchHeader]] = []
    used = 0
    try:
        for at, header in iter_headers(chunk):
            used = at + header.size
            if _may_have_rows(task, header):
                chosen.append((at, header))
    except InvalidBatch as problem:
        raise _damaged(task.path, position + used, problem) from None
    for at, header in chosen:
        try:
            validate_stored_batch(chunk, at, at + header.size)
        except InvalidBatch as problem:
            raise _damaged(task.path, position + at, problem) from None
    return used, chosen


def _may_have_rows(task: SegmentTask, header: BatchHeader) -> bool:
    if header.is_control or header.record_count == 0 or _is_outside(header, task.filter):
        return False
    return not (header.is_transactional and _is_aborted(header, task.aborted))


def _is_outside(header: BatchHeader, limits: RowFilter) -> bool:
    return (
        (limits.start_offset is not None and header.last_offset < limits.start_offset)
        or (limits.end_offset is not None and header.base_offset >= limits.end_offset)
        or (limits.start_ms is not None and header.max_timestamp < limits.start_ms)
    )


def _is_aborted(header: BatchHeader, aborted: tuple[AbortedRange, ...]) -> bool:
    return any(
        each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset
        for each in aborted
    )


def _groups(batches: list[tuple[int, BatchHeader]]) -> Iterator[list[tuple[int, BatchHeader]]]:
    """Yields batches to decode together. A compressed batch may become large, so it counts as 16 times its size."""
    group: list[tuple[int, BatchHeader]] = []
    total = 0
    for position, header in batches:
        size = header.size * 16 if header.codec else header.size
        if group and total + size > _LARGEST_DATA:
            yield group
            group, total = [], 0
        group.append((position, header))
        total += size
    if group:
        yield group
