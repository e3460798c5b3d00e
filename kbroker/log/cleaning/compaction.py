"""One round of compaction of a log: maps each key of the dirty part to its newest offset, then rewrites the segments
without the records that have a newer one.

    on the loop   log_compaction.plan_compaction
    elsewhere     build_map, then for each group of segments write_cleaned; in a thread or in a process
    on the loop   log_compaction.replace_segments

Offsets, order, and the offset range of each batch stay. A batch that loses no record is copied unchanged. A tombstone
gets a delete horizon in its first round (KIP-534), and is removed after that time. A damaged log raises InvalidBatch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from kbroker.errors import StorageFailure
from kbroker.log.cleaning.batch_filter import BatchFilter
from kbroker.log.cleaning.cleanable import Cleanable
from kbroker.log.cleaning.cleaned_segment import CleanedFiles, CleanedSegment
from kbroker.log.cleaning.cleaned_transactions import CleanedTransactions
from kbroker.log.cleaning.offset_map import BYTES_PER_KEY, OffsetMap, map_keys
from kbroker.log.files.filesystem import File, FileSystem
from kbroker.log.log_config import LogConfig
from kbroker.log.producers.producer_replay import read_marker
from kbroker.log.producers.producer_state import ProducerEntry
from kbroker.log.segments.aborted_index import AbortedTransaction
from kbroker.log.segments.offset_index import OFFSET_ENTRY_SIZE
from kbroker.log.segments.time_index import TIME_ENTRY_SIZE
from kbroker.protocol.compression import decompress
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    InvalidBatch,
    read_header,
    validate_stored_batch,
)

__all__ = ["Compaction", "CompactionPlan", "Limits", "Pace", "SourceSegment"]

_MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1
# Not in Kafka. The loop renames the files of a group in one turn, about 10 us for each.
_MAX_GROUP_SEGMENTS: Final = 32


class Pace(Protocol):
    """Limits the speed of a round. Both methods may block, or raise to end the round."""

    def tick(self) -> None:
        """Called every few records."""
        ...

    def took(self, size: int) -> None:
        """Called after `size` bytes were read or written."""
        ...


class Limits(NamedTuple):
    dedupe_buffer_size: int = 128 << 20
    load_factor: float = 0.9
    io_buffer_size: int = 256 << 10


class SourceSegment(NamedTuple):
    """A segment to be compacted. Its file is read by name."""

    path: str
    base_offset: int
    end_offset: int
    size: int


class CompactionPlan(NamedTuple):
    """Everything that a round needs to know of its log."""

    filesystem: FileSystem
    directory: str
    config: LogConfig
    sources: Sequence[SourceSegment]
    cleanable: Cleanable
    aborted: Sequence[AbortedTransaction]
    producers: Mapping[int, ProducerEntry]
    now_ms: int
    limits: Limits


class Compaction:
    def __init__(self, plan: CompactionPlan, pace: Pace, *, is_alone: bool = False) -> None:
        """`is_alone`: no other thread of this process waits for the interpreter."""
        self.read_bytes = self.written_bytes = 0
        self.map_use = 0.0
        self._plan = plan
        self._limits = plan.limits
        self._filesystem = plan.filesystem
        self._pace = pace
        self._is_alone = is_alone
        self._map = OffsetMap(1)
        self._filter: BatchFilter | None = None

    # Mapping the keys

    def build_map(self) -> int:
        """Maps the keys and returns the first dirty offset of the next round. Blocks."""
        start, end = self._plan.cleanable.first_dirty_offset, self._plan.cleanable.first_uncleanable_offset
        dirty = [source for source in self._plan.sources if source.end_offset > start]
        self._map = offset_map = self._new_map(dirty)
        transactions = CleanedTransactions(aborted for aborted in self._plan.aborted if aborted.last_offset >= start)
        for source in dirty:
            if not self._map_keys(source, start, transactions):
                break
            offset_map.latest_offset = source.end_offset - 1  # an earlier round may have removed its last batches
        self.map_use = offset_map.size / offset_map.capacity
        if offset_map.latest_offset < start:
            size = self._limits.dedupe_buffer_size
            raise InvalidBatch(
                ErrorCode.INVALID_RECORD,
                f"Keys of the batch at offset {start} do not fit into {size} bytes",
            )
        self._filter = BatchFilter(
            offset_map,
            CleanedTransactions(self._plan.aborted),
            self._plan.producers,
            self._pace.tick,
            first_mapped_offset=start,
            end_offset=end,
            now_ms=self._plan.now_ms,
            delete_retention_ms=self._plan.config.delete_retention_ms,
        )
        return offset_map.latest_offset + 1

    def _new_map(self, dirty: Sequence[SourceSegment]) -> OffsetMap:
        """Returns a map for all dirty records, or of the maximum size if that is smaller."""
        limits = self._limits
        most = max(int(limits.dedupe_buffer_size / BYTES_PER_KEY * limits.load_factor), 1)
        count = sum(source.end_offset - source.base_offset for source in dirty)
        return OffsetMap(min(most, count), max_bytes=limits.dedupe_buffer_size, is_alone=self._is_alone)

    def _map_keys(self, source: SourceSegment, start: int, transactions: CleanedTransactions) -> bool:
        """Maps the keys of a segment. Returns False if the map is full: it then ends with the last complete batch."""
        offset_map, tick = self._map, self._pace.tick
        for data, at, header in self._batches(source, start):
            tick()
            batch = memoryview(data)[at : at + header.size]
            if header.is_control:
                transactions.may_drop_marker(header, read_marker(batch))
            elif not transactions.is_aborted(header):
                records = decompress(header.codec, batch[HEADER_SIZE:]) if header.record_count else b""
                if not map_keys(offset_map, records, header, start, tick):
                    return False
            if header.last_offset >= start:
                offset_map.latest_offset = header.last_offset
        return True

    # Writing the segments

    def groups(self) -> list[list[SourceSegment]]:
        """Groups segments that become one, not larger than a segment may be. Blocks."""
        config, groups = self._plan.config, list[list[SourceSegment]]()
        size = offset_bytes = time_bytes = 0
        for source in self._plan.sources:
            if source.base_offset > self._map.latest_offset:
                break
            indexes = (self._index_size(source, ".index"), self._index_size(source, ".timeindex"))
            fits = (
                bool(groups)
                and len(groups[-1]) < _MAX_GROUP_SEGMENTS
                and size + source.size <= config.segment_bytes
                and offset_bytes + indexes[0] <= config.segment_index_bytes
                and time_bytes + indexes[1] <= config.segment_index_bytes
                and (not source.size or source.end_offset - 1 - groups[-1][0].base_offset <= _MAX_RELATIVE_OFFSET)
            )
            if not fits:
                groups.append([])
                size = offset_bytes = time_bytes = 0
            groups[-1].append(source)
            size, offset_bytes, time_bytes = size + source.size, offset_bytes + indexes[0], time_bytes + indexes[1]
        return groups

    def _index_size(self, source: SourceSegment, suffix: str) -> int:
        try:
            return self._filesystem.size(source.path[: -len(".log")] + suffix)
        except FileNotFoundError:
            return 0

    def write_cleaned(self, group: Sequence[SourceSegment]) -> CleanedFiles:
        """Writes and fsyncs the segment for a group, with suffix `.cleaned`. Called for the groups in order. Blocks."""
        assert self._filter is not None, "write_cleaned before build_map"
        config = self._plan.config
        cleaned = CleanedSegment(
            self._filesystem,
            self._plan.directory,
            group[0].base_offset,
            interval=config.index_interval_bytes,
            max_entries=max(config.segment_index_bytes // max(OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE) - 1, 1),
        )
        try:
            self._filter.transactions.kept.clear()
            for source in group:
                self._filter_into(cleaned, source)
            files = cleaned.finish(self._filter.transactions.kept, self._modified_ms(group[-1]))
        except BaseException:
            with suppress(StorageFailure):  # the next start removes it
                cleaned.discard()
            raise
        self.written_bytes += files.size
        return files

    def _modified_ms(self, source: SourceSegment) -> int:
        try:
            return self._filesystem.modified_ms(source.path)
        except FileNotFoundError as error:
            raise _missing(source) from error

    def _filter_into(self, cleaned: CleanedSegment, source: SourceSegment) -> None:
        assert self._filter is not None
        keep, buffer_size = self._filter.keep, self._limits.io_buffer_size
        for data, at, header in self._batches(source):
            kept = keep(memoryview(data)[at : at + header.size], header)
            if kept is not None:
                cleaned.append(*kept)
                if cleaned.pending_bytes >= buffer_size:
                    self._write(cleaned)
        self._write(cleaned)

    def _write(self, cleaned: CleanedSegment) -> None:
        self._pace.took(cleaned.pending_bytes)
        cleaned.write()

    # Reading the files

    def _batches(self, source: SourceSegment, start_offset: int = 0) -> Iterator[tuple[bytes, int, BatchHeader]]:
        """Yields buffer, position in the buffer and header of every batch that ends at `start_offset` or later."""
        try:
            file = self._filesystem.open(source.path)
        except FileNotFoundError as error:
            raise _missing(source) from error
        try:
            position = 0
            while position < source.size:
                chunk = self._read(file, source, position)
                at = 0
                while len(chunk) - at >= HEADER_SIZE:
                    header = read_header(chunk, at)
                    if header.magic != 2 or header.size < HEADER_SIZE:
                        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"{source.path} has no batch at {position + at}")
                    if at + header.size > len(chunk):
                        break
                    if header.last_offset >= start_offset:
                        validate_stored_batch(chunk, at)
                        yield chunk, at, header
                    at += header.size
                if not at:
                    raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"{source.path} is incomplete at {position}")
                position += at
        finally:
            file.close()

    def _read(self, file: File, source: SourceSegment, position: int) -> bytes:
        """Returns a chunk with at least one complete batch, if the segment has one at `position`."""
        remaining = source.size - position
        chunk = file.read_at(min(self._limits.io_buffer_size, remaining), position)
        if len(chunk) >= LOG_OVERHEAD:
            wanted = int.from_bytes(chunk[8:LOG_OVERHEAD], "big", signed=True) + LOG_OVERHEAD
            if len(chunk) < wanted <= remaining:
                chunk = file.read_at(wanted, position)
        self.read_bytes += len(chunk)
        self._pace.took(len(chunk))
        self._pace.tick()
        return chunk


def _missing(source: SourceSegment) -> InvalidBatch:
    return InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"{source.path} does not exist any more")
