"""One partition's log: append, read, truncate, roll, flush, delete. Outcomes that Kafka has a code for are values here;
only the disk raises (StorageFailure).

Nothing is read before the first use (`load`). Offsets: log_start <= high_watermark <= log_end; the recovery point is
what has been fsynced. The caller decides the high watermark; the log knows its position, so readers need no search.
Synchronous and single-threaded, but for `FlushJob.run`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from kbroker.errors import StorageFailure
from kbroker.log import loading, retention, rolling, truncation
from kbroker.log.aborted_index import AbortedTransaction
from kbroker.log.append_result import AppendResult, refused, refused_or_repeated
from kbroker.log.append_rules import AppendRules, Rejection
from kbroker.log.doomed_files import DoomedFiles
from kbroker.log.file_cache import FileCache
from kbroker.log.file_slice import FileSlice
from kbroker.log.flush_job import FlushJob
from kbroker.log.flush_state import FlushState
from kbroker.log.follower_append import append_as_follower
from kbroker.log.leader_epochs import EpochEntry, LeaderEpochs
from kbroker.log.log_config import UNLIMITED, LogConfig
from kbroker.log.producer_replay import ProducerSnapshots, end_transaction, read_marker
from kbroker.log.producer_state import BatchTrace, ProducerEntry, ProducerState
from kbroker.log.rolling import no_jitter
from kbroker.log.segment import Segment
from kbroker.log.segment_list import SegmentList, find_aborted
from kbroker.log.time_index import TIME_ENTRY_SIZE
from kbroker.log.timestamps import TimestampOffset, find_max_timestamp, find_timestamp
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import (
    ATTRIBUTE_CONTROL,
    BatchHeader,
    InvalidBatch,
    ReadBuffer,
    WriteBuffer,
    restamp,
)
from kbroker.protocol.records import EndTransactionMarker

__all__ = ["AppendResult", "PartitionLog"]

_HOT_TAIL_BYTES: Final = 4 << 20
_NONE: Final = ErrorCode.NONE
_new_tuple = tuple.__new__


class PartitionLog:
    __slots__ = (
        "_aborts",
        "_active",
        "_checkpointed_end",
        "_epochs",
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
        "_staged",
        "_staged_bytes",
        "_undo",
        "appended_bytes",
        "cleaner_offset",
        "config",
        "doomed",
        "files",
        "path",
        "segments",
        "snapshots",
        "unparsable_batches",
        "was_shortened",
    )

    segments: SegmentList
    _active: Segment
    _epochs: LeaderEpochs
    _producers: ProducerState
    snapshots: ProducerSnapshots
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
        self.files = files
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
        self.doomed = DoomedFiles()
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
        """Reads the tail of the active segment. RecoveryNeeded: see `__init__`."""
        if not self._is_loaded:
            loading.load(self)

    def recover(self) -> None:
        """Loads it in whatever state it is; what is torn is cut off. May take long after a crash."""
        if not self._is_loaded:
            loading.take(self, loading.read_files(self, may_recover=True))

    def close(self) -> None:
        """Indexes and a snapshot of the producers to disk, files closed. Fsync is the caller's (`begin_flush`)."""
        if self._is_loaded:
            loading.close(self)

    def close_files(self) -> None:
        """Without writing anything, as a crash would; for a log that is deleted, and for tests."""
        if self._is_loaded:
            for segment in self.segments:
                segment.close()
            self.doomed.close()
            self._is_loaded = False

    def has_pins(self) -> bool:
        return self._is_loaded and (any(segment.file.pins for segment in self.segments) or self.doomed.is_pinned)

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
        return sum(segment.ensure_size() for segment in self.segments)

    @property
    def segment_base_offsets(self) -> list[int]:
        if not self._is_loaded:
            self.load()
        return [segment.base_offset for segment in self.segments]

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
                verdict = None
                if marker is not None:
                    epoch = header.producer_epoch
                    verdict = self._producers.check_marker(producer_id, epoch, marker.coordinator_epoch)
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

    def append_as_follower(self, records: ReadBuffer) -> AppendResult:
        """What a leader sent, offsets and epochs as they are. A batch that is cut off at the end is left out.

        InvalidBatch: nothing was appended, the leader's bytes are damaged or out of order.
        """
        if not self._is_loaded:
            self.load()
        return append_as_follower(self, records)

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
        return rolling.roll(self, now_ms, base_offset)

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
            return ErrorCode.CORRUPT_MESSAGE  # rotten below the recovery point, where nobody looked
        if size <= 0 or segment.base_offset > bound_segment.base_offset:
            return None
        return FileSlice(
            segment.file,
            position,
            size,
            is_hot_tail=segment is active and position >= active.size - _HOT_TAIL_BYTES,
        )

    def _locate(self, offset: int) -> tuple[Segment, int]:
        """The position that a reader bounded by `offset` must not reach. A batch that holds it is left out whole."""
        active = self._active
        if offset >= self._log_end_offset:
            return active, active.size
        if offset >= active.base_offset:
            return active, max(active.find(offset), 0)
        segment, position, _ = self.segments.find_batch(offset)
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
        """Those with data in [start, end), for a read_committed fetch; `within`: as `find_aborted` has it."""
        if not self._is_loaded:
            self.load()
        return find_aborted(self.segments.starting_with(start_offset), start_offset, end_offset, within)

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record that is not older."""
        if not self._is_loaded:
            self.load()
        return self._counted(find_timestamp(self.segments, timestamp, self._log_start_offset))

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        if not self._is_loaded:
            self.load()
        return self._counted(find_max_timestamp(self.segments, self._log_start_offset))

    def _counted(self, found: TimestampOffset | None) -> TimestampOffset | None:
        if found is not None and not found.is_exact:
            self.unparsable_batches += 1
        return found

    # Taking away

    def truncate_to(self, offset: int) -> bool:
        """Takes away everything from `offset` on, whole batches. True if there was anything."""
        if not self._is_loaded:
            self.load()
        return truncation.truncate_to(self, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """An empty log from here on: a follower whose leader has nothing older."""
        if not self._is_loaded:
            self.load()
        truncation.truncate_fully_and_start_at(self, offset)

    def apply_retention(self, now_ms: int) -> int:
        """Renames what may go; `take_deleted` tells when it may be removed. How many segments went."""
        if not self._is_loaded:
            self.load()
        return retention.apply_retention(self, now_ms)

    def delete_records_before(self, offset: int) -> int | None:
        """Raises the log's start (-1: to the high watermark) and returns it; None: the offset is out of range.

        Segments go with the next retention.
        """
        if not self._is_loaded:
            self.load()
        return retention.delete_records_before(self, offset)

    def raise_log_start_offset(self, offset: int) -> bool:
        """As a leader's log start makes a follower do; never beyond the end. True if it moved."""
        if not self._is_loaded:
            self.load()
        return retention.raise_log_start_offset(self, offset)

    def take_deleted(self, now_ms: int) -> list[str]:
        """The files whose file.delete.delay.ms is over, for the caller to remove, in a thread."""
        return self.doomed.take(now_ms)

    @property
    def truncations(self) -> int:
        """How often anything was cut off its end: what was read before one may not be what is there now."""
        return self._flush.truncations

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
        return self._flush.begin(self.files.filesystem, self.path, self.segments, up_to_offset)

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
