"""Log of one partition whose files have been read: append, read, truncate, roll, flush, delete.

Outcomes that Kafka has an error code for are values here; only the disk raises (StorageFailure).
Offsets: log_start_offset <= high_watermark <= log_end_offset; everything below the recovery point has been fsynced. The
caller decides the high watermark; the log keeps the high watermark's position, so that reads up to it need no search.
Synchronous and single-threaded, except for `FlushJob.run`. `recovery.load_log` makes an OpenLog from files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kbroker.errors import StorageFailure
from kbroker.log.append_result import AppendResult, larger_than_segment, partition_name, refused, refused_or_repeated
from kbroker.log.append_rules import AppendRules, CheckedBatch, Rejection
from kbroker.log.fetched_batches import split_fetched
from kbroker.log.files.file_cache import FileCache
from kbroker.log.files.file_slice import FileSlice
from kbroker.log.files.flush_job import FlushJob
from kbroker.log.files.pending_deletes import PendingDeletes
from kbroker.log.flush_state import FlushState
from kbroker.log.leader_epochs import EpochEntry, LeaderEpochs
from kbroker.log.log_config import LogConfig
from kbroker.log.producers.producer_replay import ProducerSnapshots, read_marker, rebuild_producers
from kbroker.log.producers.producer_state import BatchTrace, ProducerState
from kbroker.log.retention import count_deletable
from kbroker.log.roll_rules import RollRules
from kbroker.log.segments.aborted_index import AbortedTransaction
from kbroker.log.segments.segment import MAX_RELATIVE_OFFSET, Segment
from kbroker.log.segments.segment_list import SegmentList, discard, find_aborted
from kbroker.log.segments.timestamps import TimestampOffset, find_max_timestamp, find_timestamp
from kbroker.log.staging import Staging
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import (
    ATTRIBUTE_CONTROL,
    BatchHeader,
    InvalidBatch,
    ReadBuffer,
    WriteBuffer,
    restamp,
)

__all__ = ["OpenLog"]

_HOT_TAIL_BYTES: Final = 4 << 20
_NONE: Final = ErrorCode.NONE
_new_tuple: Final = tuple.__new__


class OpenLog:
    """The offsets, `producers` and `truncations` are for reading: only the log's own methods change them."""

    __slots__ = (
        "_active",
        "_flush_state",
        "_hw_position",
        "_hw_segment",
        "_is_append_time",
        "_random_below",
        "_roll_rules",
        "_staging",
        "append_rules",
        "appended_bytes",
        "cleaner_offset",
        "config",
        "files",
        "high_watermark",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "path",
        "pending_deletes",
        "producers",
        "recovery_point",
        "segments",
        "snapshots",
        "truncations",
        "unparsable_batches",
        "was_shortened",
    )

    def __init__(
        self,
        files: FileCache,
        path: str,
        config: LogConfig,
        *,
        segments: SegmentList,
        leader_epochs: LeaderEpochs,
        producers: ProducerState,
        snapshots: ProducerSnapshots,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        cleaner_offset: int | None,
        was_shortened: bool,
        random_below: Callable[[int], int],
    ) -> None:
        self.files = files
        self.path = path
        self.segments = segments
        self.leader_epochs = leader_epochs
        self.producers = producers
        self.snapshots = snapshots
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.recovery_point = recovery_point  # everything below it has been fsynced
        self.cleaner_offset = cleaner_offset  # offset up to which the log has been compacted; None: never compacted
        self.was_shortened = was_shortened  # by recovery
        self.unparsable_batches = 0
        self.appended_bytes = 0  # since the log was opened
        self.truncations = 0  # bytes read before a truncation may differ from those in the log now
        self.pending_deletes = PendingDeletes()
        self.high_watermark = log_start_offset
        self._active = segments.active
        self._hw_segment = segments.first
        self._hw_position = 0
        self._flush_state = FlushState()
        self._staging = Staging()
        self._random_below = random_below
        self.update_config(config)
        self._active.roll_jitter_ms = self._roll_rules.new_jitter_ms()

    def __repr__(self) -> str:
        return f"<OpenLog {self.path}>"

    def update_config(self, config: LogConfig) -> None:
        self.config = config
        self.append_rules = AppendRules(config, partition_name(self.path))
        self._roll_rules = RollRules(config, self._random_below)
        self._is_append_time = config.message_timestamp_type == "LogAppendTime"

    # Closing

    def close(self) -> None:
        """Writes the indexes and a producer snapshot and closes the files. The caller fsyncs (`begin_flush`)."""
        assert not self._staging.size_bytes, f"{self!r} is closed with batches staged"
        self._active.become_inactive()
        self.snapshots.write(self.producers, self.log_end_offset)
        self.pending_deletes.unlink()
        self.close_files()

    def close_files(self) -> None:
        """Closes the files and writes nothing, as a crash would. For a deleted log, and for tests."""
        for segment in self.segments:
            segment.close()
        self.pending_deletes.close()

    def has_pins(self) -> bool:
        """Whether a response or a flush still uses a file of the log."""
        return any(segment.file.pins for segment in self.segments) or self.pending_deletes.is_pinned

    def move_to(self, files: FileCache) -> None:
        """Puts the files under another cache. A log is read in a thread with its own cache: caches know no threads."""
        for segment in self.segments:
            segment.move_to(files)
        self.files = files

    # Offsets and sizes

    @property
    def last_stable_offset(self) -> int:
        """Returns the offset below which every transaction has ended. Never above the high watermark."""
        unstable = self.producers.first_unstable_offset
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log_start_offset)

    @property
    def size_bytes(self) -> int:
        return sum(segment.ensure_size() for segment in self.segments)

    @property
    def segment_base_offsets(self) -> list[int]:
        return [segment.base_offset for segment in self.segments]

    def end_offset_for_epoch(self, epoch: int) -> EpochEntry:
        return self.leader_epochs.end_offset_for(epoch, log_end_offset=self.log_end_offset)

    def assign_leader_epoch(self, epoch: int) -> None:
        """Records that a leader's epoch starts at the log end offset, before the leader's first append."""
        self.leader_epochs.assign(epoch, start_offset=self.log_end_offset)

    # Appending as leader: stage, stage, …, commit

    def stage_message_set(self, message_set: ReadBuffer, leader_epoch: int, now_ms: int) -> AppendResult:
        """Stages messages of magic 0 or 1 (Produce v0 to v2), converted to one batch."""
        batch = self.append_rules.convert(message_set)
        if isinstance(batch, Rejection):
            return refused(batch)
        return self.stage(batch, leader_epoch, now_ms)

    def stage(self, batch: WriteBuffer, leader_epoch: int, now_ms: int, *, is_internal: bool = False) -> AppendResult:
        """Checks a batch, stamps it in place and gives it its offset. It is written and visible after `commit`.

        The buffer must not change until then. `is_internal`: written by the broker itself, as transaction markers are.
        Returns CHECK_IN_THREAD if the check takes too long here: use `append_rules.check_at_length`, `stage_checked`.
        Raises StorageFailure if the disk fails: all batches that are not committed, this one included, are dropped.
        """
        rules = self.append_rules
        checked = rules.check_internal(batch, now_ms) if is_internal else rules.check(batch, now_ms)
        if checked.__class__ is Rejection:
            return refused(checked)
        return self.stage_checked(checked, leader_epoch, now_ms, is_internal=is_internal)  # type: ignore[arg-type]

    def stage_checked(
        self, checked: CheckedBatch, leader_epoch: int, now_ms: int, *, is_internal: bool = False
    ) -> AppendResult:
        """Like `stage`, after the check. `now_ms` is the time of the check: records may have it as append time."""
        batch, header = checked
        size = len(batch)
        roll_rules = self._roll_rules
        if size > roll_rules.segment_bytes:
            return larger_than_segment(self.path, size=size, segment_bytes=roll_rules.segment_bytes)
        marker = None
        producer_id = header[9]  # by index: hot path
        if producer_id >= 0:
            verdict: BatchTrace | ErrorCode | None
            if header.attributes & ATTRIBUTE_CONTROL:
                marker = read_marker(batch)
                verdict = None
                if marker is not None:
                    epoch = header.producer_epoch
                    verdict = self.producers.check_marker(
                        producer_id, producer_epoch=epoch, coordinator_epoch=marker.coordinator_epoch
                    )
            else:
                verdict = None if is_internal else self.producers.check(header)
            if verdict is not None:
                return refused_or_repeated(verdict, self.log_start_offset)
        segment, staging = self._active, self._staging
        position = segment.size + staging.size_bytes
        try:
            if position and roll_rules.is_due(segment, position + size, header, now_ms):
                segment = self.roll(now_ms)
                position = 0
            base_offset = segment.next_offset
            if leader_epoch > self.leader_epochs.latest:
                self.leader_epochs.assign(leader_epoch, start_offset=base_offset)
        except StorageFailure:
            self._abandon()
            raise
        last_offset = base_offset + header[6]
        restamp(batch, 0, base_offset, leader_epoch)
        segment.note(position, size, last_offset, header[8])
        staging.batches.append(batch)
        staging.size_bytes += size
        if producer_id >= 0:
            staging.update_producer(self.producers, header, base_offset, marker)
        log_append_time = now_ms if self._is_append_time else -1
        return _new_tuple(
            AppendResult, (_NONE, base_offset, last_offset, log_append_time, self.log_start_offset, False, None, ())
        )

    def commit(self) -> None:
        """Writes the staged batches. Raises StorageFailure if a write fails: then no batch of them is in the log."""
        staging = self._staging
        size = staging.size_bytes
        if not size:
            return
        segment = self._active
        try:
            segment.write(staging.batches, size)
        except BaseException:
            # After a bug too: the batches are views of receive buffers, whose content changes soon.
            self._abandon()
            raise
        self.log_end_offset = segment.next_offset
        self.appended_bytes += size
        staging.complete(segment)

    def _abandon(self) -> None:
        if self._staging.size_bytes:
            self._staging.abandon(self.producers)
            # A follower may have started a segment behind a gap: the log then ends at the segment's start.
            self._active.rewind(max(self.log_end_offset, self._active.base_offset))
            self.log_end_offset = self._active.next_offset

    # Appending as follower

    def append_as_follower(self, records: ReadBuffer) -> AppendResult:
        """Appends batches from a leader with their offsets and epochs; an incomplete batch at the end is left out.

        Raises InvalidBatch if the leader's bytes are damaged or out of order; then nothing was appended.
        """
        is_empty = self.log_start_offset == self.log_end_offset
        batches = split_fetched(records, self.log_end_offset, is_log_empty=is_empty)
        if not batches:
            return AppendResult(ErrorCode.NONE, log_start_offset=self.log_start_offset)
        if batches[0][1].base_offset < self.log_end_offset:
            # The caller raises the log start offset to the leader's again.
            self.truncate_fully_and_start_at(batches[0][1].base_offset)
        try:
            for batch, header in batches:
                self._stage_fetched(batch, header)
        except StorageFailure:
            self._abandon()
            raise
        self.commit()
        first, last = batches[0][1].base_offset, batches[-1][1].last_offset
        return AppendResult(ErrorCode.NONE, first, last, log_start_offset=self.log_start_offset)

    def _stage_fetched(self, batch: memoryview, header: BatchHeader) -> None:
        segment, staging = self._active, self._staging
        size = len(batch)
        position = segment.size + staging.size_bytes
        is_too_far = header.last_offset > segment.last_possible_offset  # compaction on the leader can leave such gaps
        if is_too_far or (position and self._roll_rules.is_due(segment, position + size, header, header.max_timestamp)):
            segment = self._roll_for_fetched(segment.next_offset, header)
            position = 0
        if header.leader_epoch > self.leader_epochs.latest:
            self.leader_epochs.assign(header.leader_epoch, start_offset=header.base_offset)
        marker = read_marker(batch) if header.is_control and header.producer_id >= 0 else None
        segment.note(position, size, header.last_offset, header.max_timestamp)
        staging.batches.append(batch)
        staging.size_bytes += size
        if header.producer_id >= 0:
            staging.update_producer(self.producers, header, header.base_offset, marker)

    def _roll_for_fetched(self, end_offset: int, header: BatchHeader) -> Segment:
        """Starts the next segment at `end_offset`, or at the batch if it is too far from there.

        Not always at the batch: after a crash, recovery takes a gap between segments for lost batches.
        """
        is_reachable = header.last_offset - end_offset <= MAX_RELATIVE_OFFSET
        return self.roll(header.max_timestamp, base_offset=end_offset if is_reachable else header.base_offset)

    # Rolling

    def roll(self, now_ms: int, *, base_offset: int | None = None) -> Segment:
        """Closes the active segment and starts the next at `base_offset`, or at the log end offset if it is None.

        Returns the active segment, unchanged if it is empty.
        """
        self.commit()
        old = self._active
        base = self.log_end_offset if base_offset is None else base_offset
        if base == old.base_offset:
            return old
        old.become_inactive()
        if self.recovery_point >= base:
            # No flush and no recovery looks at this segment again, so a truncation of it has to be on disk: that may
            # have set the recovery point to the segment's end. Everything else in the file is on disk already.
            old.file.open().sync()
        self.snapshots.write(self.producers, base)
        new = self._create_segment(base, now_ms)
        old.is_active = False
        self.segments.append(new)
        self._active = new
        if self.high_watermark >= base:
            self._hw_segment, self._hw_position = new, 0
        return new

    def _create_segment(self, base_offset: int, now_ms: int) -> Segment:
        config = self.config
        segment = Segment.create(
            self.files,
            self.path,
            base_offset,
            interval=config.index_interval_bytes,
            preallocate_bytes=config.segment_bytes if config.preallocate else 0,
        )
        segment.created_ms = now_ms
        segment.roll_jitter_ms = self._roll_rules.new_jitter_ms()
        return segment

    # Reading

    def read(
        self, offset: int, max_bytes: int, *, up_to: int | None = None, min_one_batch: bool = True
    ) -> FileSlice | ErrorCode | None:
        """Returns a slice of one segment from the batch that holds `offset`; None if no batch may be read yet.

        `up_to`: the high watermark or the last stable offset; None is the log end offset. The caller releases the
        slice.
        """
        active = self._active
        if up_to is None:
            up_to, bound_segment, bound_position = self.log_end_offset, active, active.size
        elif up_to == self.high_watermark:
            bound_segment, bound_position = self._hw_segment, self._hw_position
        else:
            bound_segment, bound_position = self._locate(min(up_to, self.log_end_offset))
        if offset >= up_to:
            return ErrorCode.OFFSET_OUT_OF_RANGE if offset > self.log_end_offset else None
        if offset < self.log_start_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        segment: Segment | None = active
        try:
            if offset >= active.base_offset:
                position, first_size = active.find_batch(offset)
            else:
                segment, position, first_size = self.segments.find_batch(offset)
            if segment is None or position < 0:
                return None
            size = (bound_position if segment is bound_segment else segment.size) - position
            if size > max_bytes:
                if first_size > max_bytes:
                    if not min_one_batch:
                        return None
                    size = min(size, first_size)
                else:
                    size = max_bytes
        except InvalidBatch:
            return ErrorCode.CORRUPT_MESSAGE  # damaged below the recovery point, which recovery does not check
        if size <= 0 or segment.base_offset > bound_segment.base_offset:
            return None
        return FileSlice(
            segment.file,
            position,
            size,
            is_hot_tail=segment is active and position >= active.size - _HOT_TAIL_BYTES,
        )

    def _locate(self, offset: int) -> tuple[Segment, int]:
        """Returns where reads below `offset` end: the start of the batch that holds `offset`."""
        active = self._active
        if offset >= self.log_end_offset:
            return active, active.size
        if offset >= active.base_offset:
            return active, max(active.find(offset), 0)
        segment, position, _ = self.segments.find_batch(offset)
        return (segment, position) if segment is not None else (active, 0)

    def set_high_watermark(self, offset: int) -> None:
        """Sets the high watermark, limited to the range of the log.

        Reads the file only if the offset is neither the log end offset nor in one of the newest batches.
        """
        offset = min(max(offset, self.log_start_offset), self.log_end_offset)
        self.high_watermark = offset
        if offset == self.log_end_offset:
            self._hw_segment = self._active
            self._hw_position = self._active.size
        else:
            self._hw_segment, self._hw_position = self._locate(offset)
        if self.producers.first_unstable_offset is not None:
            self.producers.on_high_watermark(offset)

    def advance_high_watermark(self, offset: int) -> bool:
        """Like `set_high_watermark`, but never lowers it. Returns whether it moved."""
        before = self.high_watermark
        if offset <= before:
            return False
        if offset == self.log_end_offset and self.producers.first_unstable_offset is None:
            # Shortcut for every append of a leader without followers.
            active = self._active
            self.high_watermark, self._hw_segment, self._hw_position = offset, active, active.size
            return True
        self.set_high_watermark(offset)
        return self.high_watermark > before

    def aborted_transactions(
        self, start_offset: int, end_offset: int, within: FileSlice | None = None
    ) -> list[AbortedTransaction]:
        """Returns the aborted transactions with data in [start, end); see `find_aborted` for `within`."""
        return find_aborted(self.segments.starting_with(start_offset), start_offset, end_offset, within)

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """Returns the first record that is not older than `timestamp`; None if all records are."""
        return self._counted(find_timestamp(self.segments, timestamp, start_offset=self.log_start_offset))

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        return self._counted(find_max_timestamp(self.segments, self.log_start_offset))

    def _counted(self, found: TimestampOffset | None) -> TimestampOffset | None:
        if found is not None and not found.is_exact:
            self.unparsable_batches += 1
        return found

    # Truncation. Files of whole segments are renamed, get a new generation, so that slices of them become invalid, and
    # are unlinked.

    def truncate_to(self, offset: int) -> bool:
        """Removes all batches that reach `offset` or beyond. Returns whether there was one."""
        segments = self.segments
        if offset >= self.log_end_offset:
            return False
        if offset < segments.first.base_offset:
            self.truncate_fully_and_start_at(offset)
            return True
        assert not self._staging.size_bytes, f"{self!r} is truncated with batches staged"
        self.truncations += 1
        removed = segments.pop_behind(segments.floor_number(offset))
        discard(removed)
        segment = segments.active
        segment.ensure_size()
        segment.is_active = True
        if removed:
            segment.is_new = True  # the next flush has to fsync the directory too: the removed names must not return
        position = segment.find(offset)
        if position >= 0:
            end_offset = min(segment.header_at(position).base_offset, offset)
            segment.truncate_to_position(position, next_offset=max(end_offset, segment.base_offset))
        else:
            segment.rewind(offset)
        self._active = segment
        self._finish_truncation(segment.next_offset)
        if offset > segment.last_possible_offset:
            self.roll(-1)  # in a gap between segments that is larger than a segment's range of offsets
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Empties the log and moves its start and end to `offset`: the leader has no older records."""
        assert not self._staging.size_bytes, f"{self!r} is truncated with batches staged"
        self.truncations += 1
        # Renamed first: the new segment may have the name of an old one.
        discard(list(self.segments))
        self._active = self._create_segment(offset, -1)
        self.segments.replace_all(self._active)
        self.snapshots.remove_all()
        self.leader_epochs.clear()
        self.log_start_offset = offset
        self._finish_truncation(offset)

    def _finish_truncation(self, end_offset: int) -> None:
        self.log_end_offset = end_offset
        self.recovery_point = min(self.recovery_point, end_offset)
        if self.cleaner_offset is not None:
            self.cleaner_offset = min(self.cleaner_offset, end_offset)
        self.leader_epochs.truncate_from_end(end_offset)
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.producers = rebuild_producers(self.segments, self.snapshots, end_offset)
        self.set_high_watermark(self.high_watermark)

    # Deleting at the front, and replacing

    def apply_retention(self, now_ms: int) -> int:
        """Removes the segments that retention allows to delete, and returns their number.

        Their files are renamed; `pending_deletes` says when the caller may delete them.
        """
        segments = self.segments
        count = count_deletable(
            segments,
            self.config,
            now_ms=now_ms,
            high_watermark=self.high_watermark,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
        )
        if not count:
            return 0
        if count == len(segments):
            self.roll(now_ms)
        due_ms = now_ms + self.config.file_delete_delay_ms
        for segment in segments.pop_first(count):
            self.pending_deletes.add(due_ms, segment.mark_deleted())
        self.raise_log_start_offset(segments.first.base_offset)
        self.snapshots.remove_before(segments.first.base_offset)
        return count

    def delete_records_before(self, offset: int) -> int | None:
        """Raises the log start offset (-1: to the high watermark) and returns it; None if `offset` is out of range.

        The next retention deletes the segments.
        """
        if offset == -1:
            offset = self.high_watermark
        if not 0 <= offset <= self.high_watermark:
            return None
        self.raise_log_start_offset(offset)
        return self.log_start_offset

    def raise_log_start_offset(self, offset: int) -> bool:
        """Raises the log start offset, at most to the log end offset. Returns whether it moved."""
        offset = min(offset, self.log_end_offset)
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)
        if self.high_watermark < offset:
            self.set_high_watermark(offset)
        return True

    # Flushing

    def is_flush_due(self, now_ms: int) -> bool:
        """Whether flush.messages, flush.ms or a roll requires a flush."""
        return self._flush_state.is_due(
            self.config,
            now_ms,
            recovery_point=self.recovery_point,
            log_end_offset=self.log_end_offset,
            active_base_offset=self._active.base_offset,
        )

    def begin_flush(self, *, only_rolled: bool = False) -> FlushJob | None:
        """Writes the indexes and returns a job to `run` in a thread and then pass to `complete_flush`.

        None: everything is flushed, or a job is running. Batches appended while it runs wait for the next one: this is
        the group commit.
        """
        return self._flush_state.begin(
            self.files.filesystem,
            self.path,
            self.segments,
            recovery_point=self.recovery_point,
            up_to_offset=self._active.base_offset if only_rolled else self.log_end_offset,
            truncations=self.truncations,
        )

    def complete_flush(self, job: FlushJob, now_ms: int) -> None:
        """Ends a job that has run or failed. On the loop."""
        # A job that began before a truncation may have missed it: the recovery point stays.
        if self._flush_state.complete(job, now_ms=now_ms, truncations=self.truncations):
            self.recovery_point = max(self.recovery_point, job.up_to_offset)

    def flush(self, now_ms: int) -> None:
        """Flushes the whole log and blocks until that is done. For a clean stop and for tests."""
        self._flush_state.abandon()
        job = self.begin_flush()
        if job is not None:
            try:
                job.run()
            finally:
                self.complete_flush(job, now_ms)
