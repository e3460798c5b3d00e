"""One partition's log: append, read, truncate, roll, flush, delete. Outcomes that Kafka has a code for are values here;
only the disk raises (StorageFailure).

Nothing is read before the first use (`load`). Offsets: log_start <= high_watermark <= log_end; the recovery point is
what has been fsynced. The caller decides the high watermark; the log knows its position, so readers need no search.
Synchronous and single-threaded, but for `FlushJob.run`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from kbroker.errors import RecoveryNeeded, StorageFailure
from kbroker.log.aborted_index import AbortedTransaction, aborted_in_range
from kbroker.log.append_result import AppendResult, refused, refused_or_repeated
from kbroker.log.append_rules import AppendRules, Rejection
from kbroker.log.cleanable import Cleanable, find_cleanable
from kbroker.log.cleaned_segment import CleanedSegment
from kbroker.log.compaction import Compaction, Limits, Pace, Source
from kbroker.log.doomed_files import DoomedFiles
from kbroker.log.file_cache import FileCache
from kbroker.log.file_slice import FileSlice
from kbroker.log.flush_job import FlushJob
from kbroker.log.flush_state import FlushState
from kbroker.log.leader_epochs import EpochEntry, LeaderEpochs
from kbroker.log.log_config import UNLIMITED, LogConfig
from kbroker.log.producer_replay import ProducerSnapshots, end_transaction, read_marker, rebuild_producers
from kbroker.log.producer_state import BatchTrace, ProducerEntry, ProducerState
from kbroker.log.recovery import LoadedLog, load_log
from kbroker.log.retention import count_deletable
from kbroker.log.segment import Segment
from kbroker.log.segment_list import SegmentList
from kbroker.log.time_index import TIME_ENTRY_SIZE
from kbroker.log.timestamps import TimestampOffset, find_max_timestamp, find_timestamp
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import (
    ATTRIBUTE_CONTROL,
    BatchHeader,
    InvalidBatch,
    ReadBuffer,
    WriteBuffer,
    iter_headers,
    restamp,
    validate_stored_batch,
)
from kbroker.protocol.records import EndTransactionMarker

__all__ = ["AppendResult", "PartitionLog", "no_jitter"]

_HOT_TAIL_BYTES: Final = 4 << 20
_NONE: Final = ErrorCode.NONE
_new_tuple = tuple.__new__


def no_jitter(_bound: int) -> int:
    return 0


class PartitionLog:
    __slots__ = (
        "_aborts",
        "_active",
        "_checkpointed_end",
        "_doomed",
        "_epochs",
        "_files",
        "_flush",
        "_high_watermark",
        "_hw_position",
        "_hw_segment",
        "_is_append_time",
        "_is_clean",
        "_is_loaded",
        "_is_unsound",
        "_log_end_offset",
        "_log_start_offset",
        "_max_entries",
        "_on_unsound",
        "_producers",
        "_random_below",
        "_rules",
        "_segment_bytes",
        "_segment_ms",
        "_segments",
        "_snapshots",
        "_staged",
        "_staged_bytes",
        "_undo",
        "appended_bytes",
        "cleaner_offset",
        "config",
        "path",
        "unparsable_batches",
        "was_shortened",
    )

    _segments: SegmentList
    _active: Segment
    _epochs: LeaderEpochs
    _producers: ProducerState
    _snapshots: ProducerSnapshots
    _hw_segment: Segment

    def __init__(
        self,
        files: FileCache,
        path: str,
        config: LogConfig,
        *,
        log_start_offset: int = 0,
        recovery_point: int = 0,
        high_watermark: int = 0,
        cleaner_offset: int | None = None,
        is_clean: bool = True,
        random_below: Callable[[int], int] = no_jitter,
        on_unsound: Callable[[], object] | None = None,
    ) -> None:
        """The offsets are those of the checkpoints. Unless `is_clean`, it has to be recovered.

        Without `on_unsound` that is part of loading. With it, a use of such a log, or of one that turns out to be
        damaged, calls it and is RecoveryNeeded until somebody has seen to `recover`.
        """
        self._files = files
        self.path = path
        self._random_below = random_below
        self._log_start_offset = log_start_offset
        self._high_watermark = high_watermark
        self._checkpointed_end = high_watermark
        self._flush = FlushState(recovery_point)
        self.cleaner_offset = cleaner_offset  # up to where it has been compacted; None: never
        self._is_clean = is_clean
        self._is_loaded = False
        self._is_unsound = not is_clean
        self._on_unsound = on_unsound
        self.was_shortened = False  # by recovery
        self.unparsable_batches = 0
        self._log_end_offset = -1
        self._hw_position = 0
        self._staged: list[WriteBuffer] = []
        self._staged_bytes = 0
        self.appended_bytes = 0  # since it was opened: whoever waits for so many bytes looks at the difference
        self._undo: list[tuple[int, ProducerEntry | None]] = []
        self._aborts: list[AbortedTransaction] = []
        self._doomed = DoomedFiles()
        self.update_config(config)

    def __repr__(self) -> str:
        return f"<PartitionLog {self.path}>"

    def update_config(self, config: LogConfig) -> None:
        self.config = config
        self._rules = AppendRules(config)
        self._is_append_time = config.message_timestamp_type == "LogAppendTime"
        self._segment_bytes = config.segment_bytes
        self._segment_ms = config.max_segment_ms
        # The time index has the larger entries, and room for one more has to be left for the closing one.
        self._max_entries = max(config.segment_index_bytes // TIME_ENTRY_SIZE - 1, 1)

    # Loading and closing

    @property
    def is_loaded(self) -> bool:
        return self._is_loaded

    @property
    def needs_recovery(self) -> bool:
        """After a crash, or because a use has found it damaged. The caller gives it a new leader epoch before it
        serves: one that lost whole batches looks like one that lost none."""
        return self._is_unsound and not self._is_loaded

    def load(self) -> None:
        """Reads the tail of the active segment."""
        if self._is_loaded:
            return
        if self._on_unsound is None:
            self.recover()
            return
        try:
            if self._is_unsound:
                raise RecoveryNeeded(f"{self.path} has to be recovered")
            loaded = self._read_files(may_recover=False)
        except RecoveryNeeded:
            self._is_unsound = True
            self._on_unsound()
            raise
        self.take(loaded)

    def recover(self) -> None:
        """Loads it in whatever state it is; what is torn is cut off. May take long after a crash."""
        if not self._is_loaded:
            self.take(self.scan())

    def scan(self) -> LoadedLog:
        """The part of `recover` that takes long, for a thread; `take` is the rest.

        Hence the files of its own: what is shared with other logs belongs to the loop.
        """
        return self._read_files(may_recover=True)

    def _read_files(self, *, may_recover: bool) -> LoadedLog:
        return load_log(
            FileCache(self._files.filesystem),
            self.path,
            self.config,
            log_start_offset=self._log_start_offset,
            recovery_point=self.recovery_point,
            cleaner_offset=self.cleaner_offset or 0,
            is_clean=self._is_clean,
            may_recover=may_recover,
        )

    def take(self, loaded: LoadedLog) -> None:
        self._segments = loaded.segments
        self._active = loaded.segments.active
        self._active.roll_jitter_ms = self._new_jitter()
        self._epochs = loaded.epochs
        self._producers = loaded.producers
        self._snapshots = loaded.snapshots
        self._log_start_offset = loaded.log_start_offset
        self._log_end_offset = loaded.log_end_offset
        self.was_shortened = loaded.was_shortened
        self.recovery_point = (
            loaded.log_end_offset if self._is_clean else min(self.recovery_point, self._log_end_offset)
        )
        self._is_loaded = True
        self._is_unsound = False
        self.set_high_watermark(self._high_watermark)
        for segment in loaded.segments:
            segment.move_to(self._files)

    def close(self) -> None:
        """Indexes and a snapshot of the producers to disk, files closed. Fsync is the caller's (`begin_flush`)."""
        if not self._is_loaded:
            return
        assert not self._staged, "staged batches were neither committed nor abandoned"
        self._active.become_inactive()
        self._snapshots.take(self._producers, self._log_end_offset)
        self._doomed.unlink()
        self.close_files()

    def close_files(self) -> None:
        """Without writing anything, as a crash would; for a log that is deleted, and for tests."""
        if self._is_loaded:
            for segment in self._segments:
                segment.close()
            self._doomed.close()
            self._is_loaded = False

    def has_pins(self) -> bool:
        return self._is_loaded and (any(segment.file.pins for segment in self._segments) or self._doomed.is_pinned)

    # What the log knows

    @property
    def log_start_offset(self) -> int:
        if not self._is_loaded:
            self.load()
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        if not self._is_loaded:
            self.load()
        return self._log_end_offset

    @property
    def known_offsets(self) -> tuple[int, int]:
        """Start and end, without reading anything: an unread log was closed cleanly, and ends at its high watermark."""
        return self._log_start_offset, self._log_end_offset if self._is_loaded else self._checkpointed_end

    @property
    def high_watermark(self) -> int:
        if not self._is_loaded:
            self.load()
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction has ended. Never above the high watermark."""
        if not self._is_loaded:
            self.load()
        unstable = self._producers.first_unstable_offset
        if unstable is None or unstable >= self._high_watermark:
            return self._high_watermark
        return max(unstable, self._log_start_offset)

    @property
    def producers(self) -> ProducerState:
        if not self._is_loaded:
            self.load()
        return self._producers

    @property
    def leader_epochs(self) -> LeaderEpochs:
        if not self._is_loaded:
            self.load()
        return self._epochs

    @property
    def size_bytes(self) -> int:
        if not self._is_loaded:
            self.load()
        return sum(segment.ensure_size() for segment in self._segments)

    @property
    def segment_base_offsets(self) -> list[int]:
        if not self._is_loaded:
            self.load()
        return [segment.base_offset for segment in self._segments]

    def end_offset_for_epoch(self, epoch: int) -> EpochEntry:
        return self.leader_epochs.end_offset_for(epoch, self._log_end_offset)

    def assign_leader_epoch(self, epoch: int) -> None:
        """A leader begins here, before its first append."""
        self.leader_epochs.assign(epoch, self._log_end_offset)

    # Appending as leader: stage, stage, …, commit

    def append_as_leader(
        self, batch: WriteBuffer, leader_epoch: int, now_ms: int, *, is_internal: bool = False
    ) -> AppendResult:
        """One batch, written at once. The buffer is stamped in place. `is_internal`: the broker's own, and markers."""
        result = self.stage(batch, leader_epoch, now_ms, is_internal=is_internal)
        if self._staged:
            self.commit()
        return result

    def append_run(self, batches: Sequence[WriteBuffer], leader_epoch: int, now_ms: int) -> list[AppendResult]:
        """Several batches in one write; each is accepted or refused by itself."""
        results = [self.stage(batch, leader_epoch, now_ms) for batch in batches]
        self.commit()
        return results

    def append_message_set(self, message_set: ReadBuffer, leader_epoch: int, now_ms: int) -> AppendResult:
        result = self.stage_message_set(message_set, leader_epoch, now_ms)
        self.commit()
        return result

    def stage_message_set(self, message_set: ReadBuffer, leader_epoch: int, now_ms: int) -> AppendResult:
        """Messages of magic 0 or 1, from Produce v0 to v2, converted to one batch."""
        batch = self._rules.convert(message_set)
        if isinstance(batch, Rejection):
            return refused(batch)
        return self.stage(batch, leader_epoch, now_ms)

    def stage(self, batch: WriteBuffer, leader_epoch: int, now_ms: int, *, is_internal: bool = False) -> AppendResult:
        """Checks and stamps a batch and gives it its offset; nobody sees it before `commit`. The buffer must stay.

        StorageFailure: this batch, and what was staged before it and not yet committed, never came.
        """
        if not self._is_loaded:
            self.load()
        rules = self._rules
        checked = rules.check_internal(batch, now_ms) if is_internal else rules.check(batch, now_ms)
        if checked.__class__ is Rejection:
            return refused(checked)
        batch, header = checked  # type: ignore[misc]
        size = len(batch)
        if size > self._segment_bytes:
            return AppendResult(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                error_message=f"a batch of {size} bytes; segment.bytes is {self._segment_bytes}",
            )
        marker = None
        producer_id = header[9]  # by index, for this is the hot path
        if producer_id >= 0:
            verdict: BatchTrace | ErrorCode | None
            if header.attributes & ATTRIBUTE_CONTROL:
                marker = read_marker(batch)
                verdict = self._check_marker(header, marker)
            else:
                verdict = None if is_internal else self._producers.check(header)
            if verdict is not None:
                return refused_or_repeated(verdict, self._log_start_offset)
        segment = self._active
        position = segment.size + self._staged_bytes
        try:
            if position and self._is_roll_due(segment, position + size, header, now_ms):
                segment = self.roll(now_ms)
                position = 0
            base_offset = segment.next_offset
            if leader_epoch > self._epochs.latest:
                self._epochs.assign(leader_epoch, base_offset)
        except StorageFailure:
            self._abandon()
            raise
        last_offset = base_offset + header[6]
        restamp(batch, 0, base_offset, leader_epoch)
        segment.note(position, size, last_offset, header[8])
        self._staged.append(batch)
        self._staged_bytes += size
        if producer_id >= 0:
            self._note_producer(header, base_offset, marker)
        log_append_time = now_ms if self._is_append_time else -1
        return _new_tuple(
            AppendResult, (_NONE, base_offset, last_offset, log_append_time, self._log_start_offset, False, None, ())
        )

    def commit(self) -> None:
        """Writes what was staged. StorageFailure: none of it is in the log, and all is as if it never came."""
        staged = self._staged
        if not staged:
            return
        segment = self._active
        try:
            segment.write(staged, self._staged_bytes)
        except BaseException:
            # Also after a bug: these are views of receive buffers, which will soon hold something else.
            self._abandon()
            raise
        self._log_end_offset = segment.next_offset
        self.appended_bytes += self._staged_bytes
        self._staged_bytes = 0
        staged.clear()
        if self._undo:
            self._undo.clear()
        if self._aborts:
            for aborted in self._aborts:
                segment.aborted.append(aborted)
            self._aborts.clear()
            with contextlib.suppress(StorageFailure):  # the next flush writes it, or says why not
                segment.aborted.write()

    def _abandon(self) -> None:
        if not self._staged:
            return
        self._staged.clear()
        self._staged_bytes = 0
        self._aborts.clear()
        for producer_id, old in reversed(self._undo):
            self._producers.restore(producer_id, old)
        self._undo.clear()
        self._active.rewind(self._log_end_offset)

    def _note_producer(self, header: BatchHeader, base_offset: int, marker: EndTransactionMarker | None) -> None:
        producers, producer_id = self._producers, header.producer_id
        if marker is not None:
            self._undo.append((producer_id, producers.entries.get(producer_id)))
            aborted = end_transaction(producers, header, marker, base_offset)
            if aborted is not None:
                self._aborts.append(aborted)
        elif not header.attributes & ATTRIBUTE_CONTROL:
            self._undo.append((producer_id, producers.update(header, base_offset)))

    def _check_marker(self, header: BatchHeader, marker: EndTransactionMarker | None) -> ErrorCode | None:
        if marker is None:
            return None
        return self._producers.check_marker(header.producer_id, header.producer_epoch, marker.coordinator_epoch)

    # Appending as follower

    def append_as_follower(self, records: ReadBuffer) -> AppendResult:
        """What a leader sent, offsets and epochs as they are. A batch that is cut off at the end is left out.

        InvalidBatch: nothing was appended, the leader's bytes are damaged or out of order.
        """
        if not self._is_loaded:
            self.load()
        view = memoryview(records)
        expected = first = self._log_end_offset
        batches: list[tuple[memoryview, BatchHeader]] = []
        for position, _header in iter_headers(view):
            header = validate_stored_batch(view, position)
            if header.base_offset < expected:
                raise InvalidBatch(
                    ErrorCode.INVALID_RECORD, f"offset {header.base_offset} where at least {expected} is due"
                )
            expected = header.last_offset + 1
            batches.append((view[position : position + header.size], header))
        if not batches:
            return AppendResult(_NONE, log_start_offset=self._log_start_offset)
        try:
            for batch, header in batches:
                self._stage_as_follower(batch, header)
        except StorageFailure:
            self._abandon()
            raise
        self.commit()
        first = batches[0][1].base_offset
        return AppendResult(_NONE, first, expected - 1, log_start_offset=self._log_start_offset)

    def _stage_as_follower(self, batch: memoryview, header: BatchHeader) -> None:
        segment = self._active
        size = len(batch)
        end = segment.size + self._staged_bytes + size
        if end > size and self._is_roll_due(segment, end, header, header.max_timestamp):
            segment = self.roll(header.max_timestamp, base_offset=header.base_offset)
        elif not segment.size and not self._staged and header.last_offset > segment.last_possible_offset:
            self.truncate_fully_and_start_at(header.base_offset)
            segment = self._active
        if header.leader_epoch > self._epochs.latest:
            self._epochs.assign(header.leader_epoch, header.base_offset)
        marker = read_marker(batch) if header.is_control and header.producer_id >= 0 else None
        segment.note(segment.size + self._staged_bytes, size, header.last_offset, header.max_timestamp)
        self._staged.append(batch)
        self._staged_bytes += size
        if header.producer_id >= 0:
            self._note_producer(header, header.base_offset, marker)

    # Rolling

    def _is_roll_due(self, segment: Segment, end: int, header: BatchHeader, now_ms: int) -> bool:
        """Before a batch that would end there, in a segment that is not empty."""
        if end > self._segment_bytes or segment.entry_count >= self._max_entries:
            return True
        first_timestamp = segment.first_timestamp
        waited_ms = header[8] - first_timestamp if first_timestamp >= 0 else segment.age_ms(now_ms)
        return (
            waited_ms > self._segment_ms - segment.roll_jitter_ms
            or segment.next_offset + header[6] > segment.last_possible_offset
        )

    def roll(self, now_ms: int, *, base_offset: int | None = None) -> Segment:
        """Closes the active segment and starts the next, at the end of the log (or further on, as a leader had it)."""
        if not self._is_loaded:
            self.load()
        self.commit()
        old = self._active
        base = self._log_end_offset if base_offset is None else base_offset
        if base == old.base_offset:
            return old  # empty
        old.become_inactive()
        self._snapshots.take(self._producers, base)
        new = self._new_segment(base, now_ms)
        old.is_active = False
        self._segments.append(new)
        self._active = new
        if self._high_watermark >= base:
            self._hw_segment, self._hw_position = new, 0
        return new

    def _new_segment(self, base_offset: int, now_ms: int) -> Segment:
        config = self.config
        segment = Segment.create(
            self._files,
            self.path,
            base_offset,
            config.index_interval_bytes,
            preallocate_bytes=config.segment_bytes if config.preallocate else 0,
        )
        segment.created_ms = now_ms
        segment.roll_jitter_ms = self._new_jitter()
        return segment

    def _new_jitter(self) -> int:
        bound = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return self._random_below(bound) if bound > 0 else 0

    # Reading

    def read(
        self, offset: int, max_bytes: int, *, up_to: int | None = None, min_one_batch: bool = True
    ) -> FileSlice | ErrorCode | None:
        """From the batch that holds `offset`, within one segment, below `up_to` (the high watermark, the last stable
        offset; None: the log's end). None: nothing there yet. The caller releases the slice."""
        if not self._is_loaded:
            self.load()
        active = self._active
        if up_to is None:
            up_to, bound_segment, bound_position = self._log_end_offset, active, active.size
        elif up_to == self._high_watermark:
            bound_segment, bound_position = self._hw_segment, self._hw_position
        else:
            bound_segment, bound_position = self._locate(min(up_to, self._log_end_offset))
        if offset >= up_to:
            return ErrorCode.OFFSET_OUT_OF_RANGE if offset > self._log_end_offset else None
        if offset < self._log_start_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        segment: Segment | None = active
        try:
            if offset >= active.base_offset:
                position, first_size = active.find_batch(offset)
            else:
                segment, position, first_size = self._find(offset)
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
            return ErrorCode.CORRUPT_MESSAGE  # rotten below the recovery point, where nobody looked
        if size <= 0 or segment.base_offset > bound_segment.base_offset:
            return None
        return FileSlice(
            segment.file,
            position,
            size,
            is_hot_tail=segment is active and position >= active.size - _HOT_TAIL_BYTES,
        )

    def _find(self, offset: int) -> tuple[Segment | None, int, int]:
        """The first batch that ends at `offset` or later, its position and size: compaction may have emptied whole
        segments."""
        for segment in self._segments.starting_with(offset):
            segment.ensure_size()
            position, size = segment.find_batch(offset)
            if position >= 0:
                return segment, position, size
        return None, -1, 0

    def _locate(self, offset: int) -> tuple[Segment, int]:
        """The position that a reader bounded by `offset` must not reach. A batch that holds it is left out whole."""
        active = self._active
        if offset >= self._log_end_offset:
            return active, active.size
        if offset >= active.base_offset:
            return active, max(active.find(offset), 0)
        segment, position, _ = self._find(offset)
        return (segment, position) if segment is not None else (active, 0)

    def set_high_watermark(self, offset: int) -> None:
        """Within the log. Costs a search only where it is neither the log's end nor among the newest batches."""
        if not self._is_loaded:
            self.load()
        offset = min(max(offset, self._log_start_offset), self._log_end_offset)
        self._high_watermark = offset
        if offset == self._log_end_offset:
            self._hw_segment = self._active
            self._hw_position = self._active.size
        else:
            self._hw_segment, self._hw_position = self._locate(offset)
        if self._producers.first_unstable_offset is not None:
            self._producers.on_high_watermark(offset)

    def commit_all(self) -> None:
        """For a replica that leads alone: whatever the log holds is committed, now or when it is loaded."""
        if self._is_loaded:
            self.set_high_watermark(self._log_end_offset)
        else:
            self._high_watermark = UNLIMITED

    def advance_high_watermark(self, offset: int) -> bool:
        """As `set_high_watermark`, but only upwards; True if it moved."""
        if not self._is_loaded:
            self.load()
        before = self._high_watermark
        if offset <= before:
            return False
        if offset == self._log_end_offset and self._producers.first_unstable_offset is None:
            # As below, without its questions: every append of a leader that is alone comes this way.
            active = self._active
            self._high_watermark, self._hw_segment, self._hw_position = offset, active, active.size
            return True
        self.set_high_watermark(offset)
        return self._high_watermark > before

    def aborted_transactions(
        self, start_offset: int, end_offset: int, within: FileSlice | None = None
    ) -> list[AbortedTransaction]:
        """Those with data in [start, end), for a read_committed fetch; no further than a slice reaches that was read
        from `start_offset`, for a reader who is far behind would get all of them again with every slice."""
        if not self._is_loaded:
            self.load()
        segments = self._segments.starting_with(start_offset)
        if within is not None:
            for segment in segments:
                if segment.file is within.file:
                    end_offset = min(end_offset, segment.offset_behind(within.position + within.size, end_offset))
        return list(aborted_in_range((segment.aborted for segment in segments), start_offset, end_offset))

    # By timestamp

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record that is not older."""
        if not self._is_loaded:
            self.load()
        return self._counted(find_timestamp(self._segments, timestamp, self._log_start_offset))

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        if not self._is_loaded:
            self.load()
        return self._counted(find_max_timestamp(self._segments, self._log_start_offset))

    def _counted(self, found: TimestampOffset | None) -> TimestampOffset | None:
        if found is not None and not found.is_exact:
            self.unparsable_batches += 1
        return found

    # Truncating and deleting

    def truncate_to(self, offset: int) -> bool:
        """Takes away everything from `offset` on, whole batches. True if there was anything."""
        if not self._is_loaded:
            self.load()
        if offset >= self._log_end_offset:
            return False
        if offset < self._segments.first.base_offset:
            self.truncate_fully_and_start_at(offset)
            return True
        self._begin_truncation()
        number = self._segments.floor_number(offset)
        self._discard(self._segments.pop_behind(number))
        segment = self._segments.active
        segment.ensure_size()
        segment.is_active = True
        position = segment.find(offset)
        if position >= 0:
            end_offset = min(segment.header_at(position).base_offset, offset)
            segment.truncate_to_position(position, max(end_offset, segment.base_offset))
        else:
            segment.rewind(offset)
        self._active = segment
        self._finish_truncation(segment.next_offset)
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """An empty log from here on: a follower whose leader has nothing older."""
        if not self._is_loaded:
            self.load()
        self._begin_truncation()
        # Renamed first: the new segment may have the name of an old one.
        old = list(self._segments)
        self._discard(old)
        self._active = self._new_segment(offset, -1)
        self._segments.replace_all(self._active)
        self._snapshots.remove_all()
        self._epochs.clear()
        self._log_start_offset = offset
        self._finish_truncation(offset)

    def _begin_truncation(self) -> None:
        assert not self._staged, "truncated with batches staged"
        self._flush.truncations += 1

    def _discard(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            segment.file.generation += 1
            for file in segment.mark_deleted():
                file.unlink()

    def _finish_truncation(self, end_offset: int) -> None:
        self._log_end_offset = end_offset
        self.recovery_point = min(self.recovery_point, end_offset)
        if self.cleaner_offset is not None:
            self.cleaner_offset = min(self.cleaner_offset, end_offset)
        self._epochs.truncate_from_end(end_offset)
        self._log_start_offset = min(self._log_start_offset, end_offset)
        self._producers = rebuild_producers(self._segments, self._snapshots, end_offset)
        self.set_high_watermark(self._high_watermark)

    def delete_records_before(self, offset: int) -> int | ErrorCode:
        """Raises the log's start (-1: to the high watermark) and returns it. Segments go with the next retention."""
        if not self._is_loaded:
            self.load()
        if offset == -1:
            offset = self._high_watermark
        if not 0 <= offset <= self._high_watermark:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        self.raise_log_start_offset(offset)
        return self._log_start_offset

    def raise_log_start_offset(self, offset: int) -> bool:
        """As a leader's log start makes a follower do; never beyond the end. True if it moved."""
        if not self._is_loaded:
            self.load()
        offset = min(offset, self._log_end_offset)
        if offset <= self._log_start_offset:
            return False
        self._log_start_offset = offset
        self._epochs.truncate_from_start(offset)
        if self._high_watermark < offset:
            self.set_high_watermark(offset)
        return True

    def apply_retention(self, now_ms: int) -> int:
        """Renames what may go; `take_deleted` tells when it may be removed. How many segments went."""
        if not self._is_loaded:
            self.load()
        count = count_deletable(
            self._segments,
            self.config,
            now_ms=now_ms,
            high_watermark=self._high_watermark,
            log_start_offset=self._log_start_offset,
            log_end_offset=self._log_end_offset,
        )
        if not count:
            return 0
        if count == len(self._segments):
            self.roll(now_ms)
        due_ms = now_ms + self.config.file_delete_delay_ms
        for segment in self._segments.pop_first(count):
            self._doomed.add(due_ms, segment.mark_deleted())
        self.raise_log_start_offset(self._segments.first.base_offset)
        self._snapshots.remove_before(self._segments.first.base_offset)
        return count

    def take_deleted(self, now_ms: int) -> list[str]:
        """The files whose file.delete.delay.ms is over, for the caller to remove, in a thread."""
        return self._doomed.take(now_ms)

    # Compaction

    @property
    def truncations(self) -> int:
        """How often anything was cut off its end: what was read before one may not be what is there now."""
        return self._flush.truncations

    def cleanable(self, now_ms: int) -> Cleanable:
        """How much there is to compact."""
        if not self._is_loaded:
            self.load()
        return find_cleanable(
            self._segments,
            self.config,
            checkpoint=self.cleaner_offset,
            now_ms=now_ms,
            log_start_offset=self._log_start_offset,
            log_end_offset=self._log_end_offset,
            stable_offset=min(self.last_stable_offset, self.recovery_point),
        )

    def begin_compaction(self, cleanable: Cleanable, now_ms: int, limits: Limits, pace: Pace) -> Compaction:
        """All that a round has to know: it runs in a thread, and what it asks of the log it asks here."""
        end_offset = cleanable.first_uncleanable_offset
        sources = [
            Source(segment, segment.file.path, segment.base_offset, end, segment.ensure_size())
            for number, segment in enumerate(self._segments)
            if (end := self._segments.end_of(number)) is not None and end <= end_offset
        ]
        return Compaction(
            self._files.filesystem,
            self.path,
            self.config,
            sources,
            cleanable,
            aborted=self.aborted_transactions(self._segments.first.base_offset, end_offset),
            producers=dict(self._producers.entries),
            now_ms=now_ms,
            limits=limits,
            pace=pace,
        )

    def replace_segments(self, old: Sequence[Segment], cleaned: CleanedSegment, now_ms: int) -> bool:
        """Puts what compaction has written in the place of these, at once for every reader. Slices of the old ones can
        be read on. False: they are not here any more, or not alone.

        StorageFailure: the files are half renamed; the next start completes it.
        """
        number = self._segments.find_run(old)
        if number is None:
            return False
        cleaned.begin_swap()
        doomed = [file for segment in old for file in segment.mark_deleted()]
        cleaned.end_swap()
        self._doomed.add(now_ms + self.config.file_delete_delay_ms, doomed)
        new = Segment(self._files, self.path, cleaned.base_offset, self.config.index_interval_bytes)
        new.size = cleaned.size
        self._segments.replace_run(number, len(old), new)
        self._snapshots.remove_strays(segment.base_offset for segment in self._segments)
        if self._hw_segment in old:
            self.set_high_watermark(self._high_watermark)
        return True

    # Flushing

    @property
    def recovery_point(self) -> int:
        """Below it everything has been fsynced."""
        return self._flush.recovery_point

    @recovery_point.setter
    def recovery_point(self, offset: int) -> None:
        self._flush.recovery_point = offset

    def is_flush_due(self, now_ms: int) -> bool:
        """By flush.messages, flush.ms, or because a segment was rolled."""
        return self._is_loaded and self._flush.is_due(
            self.config, now_ms, log_end_offset=self._log_end_offset, active_base_offset=self._active.base_offset
        )

    def begin_flush(self, *, only_rolled: bool = False) -> FlushJob | None:
        """Indexes are written here; `run` the job in a thread, then `complete_flush`. None: nothing to do, or one is
        under way. What is appended meanwhile waits for the next: that is the group commit."""
        if not self._is_loaded:
            return None
        up_to_offset = self._active.base_offset if only_rolled else self._log_end_offset
        return self._flush.begin(self._files.filesystem, self.path, self._segments, up_to_offset)

    def complete_flush(self, job: FlushJob, now_ms: int) -> None:
        """On the loop, whether the job ran or failed."""
        self._flush.complete(job, now_ms)

    def flush(self, now_ms: int) -> None:
        """All of it, here and now: for a clean stop and for tests. Blocks."""
        job = self.begin_flush()
        if job is not None:
            try:
                job.run()
            finally:
                self.complete_flush(job, now_ms)
