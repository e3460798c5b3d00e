"""Opens the log of a partition from its files, after a clean stop and after a crash.

After a crash, recovery reads and checks every batch from the recovery point on. It keeps the valid batches, truncates
the rest, and rebuilds indexes and producer state. Files below the recovery point are trusted: they were fsynced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from kbroker.errors import RecoveryNeeded
from kbroker.log.cleaning.cleaned_segment import CLEANED_SUFFIX, complete_swaps
from kbroker.log.files.checkpoint import NO_OFFSETS, CheckpointedOffsets
from kbroker.log.files.file_cache import FileCache
from kbroker.log.leader_epochs import LeaderEpochs
from kbroker.log.log_config import UNLIMITED, LogConfig
from kbroker.log.open_log import OpenLog
from kbroker.log.producers.producer_replay import ProducerSnapshots, rebuild_producers
from kbroker.log.roll_rules import no_jitter
from kbroker.log.segments.offset_index import new_offset_index
from kbroker.log.segments.segment import DELETED_SUFFIX, Segment
from kbroker.log.segments.segment_list import SegmentList
from kbroker.log.segments.time_index import new_time_index
from kbroker.protocol.record_batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, InvalidBatch, validate_stored_batch

__all__ = ["LEADER_EPOCH_CHECKPOINT", "load_log"]

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
_LEFT_OVER = (DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")
_SEGMENT_NAME = re.compile(r"[0-9]{20}\.log")
_CHUNK = 1 << 20


def load_log(
    files: FileCache,
    path: str,
    config: LogConfig,
    offsets: CheckpointedOffsets = NO_OFFSETS,
    *,
    is_clean: bool = True,
    may_recover: bool = True,
    random_below: Callable[[int], int] = no_jitter,
) -> OpenLog:
    """Reads a log from its files. The caller sets its high watermark.

    Raises RecoveryNeeded, without changing the log, if it is damaged or shorter than `offsets` say and not
    `may_recover`.
    """
    log_start_offset, recovery_point, _, cleaner_offset = offsets
    if not (is_clean or may_recover):
        raise RecoveryNeeded(f"{path} was not closed cleanly and needs recovery")
    filesystem = files.filesystem
    names = filesystem.list_names(path)
    for name in names:
        if name.endswith(_LEFT_OVER):
            filesystem.remove(f"{path}/{name}")
    if complete_swaps(filesystem, path, names):
        names = filesystem.list_names(path)
    bases = sorted(int(name[:20]) for name in names if _SEGMENT_NAME.fullmatch(name))
    interval = config.index_interval_bytes
    segments = SegmentList(
        [Segment(files, path, base, interval) for base in bases]
        or [Segment.create(files, path, log_start_offset, interval=interval)]
    )
    epochs = LeaderEpochs(filesystem, f"{path}/{LEADER_EPOCH_CHECKPOINT}")
    was_shortened = False
    holes_end = UNLIMITED if config.is_compacted else cleaner_offset or 0
    if is_clean:
        try:
            segments.active.load()
        except InvalidBatch as problem:
            if not may_recover:
                _close(segments)
                raise RecoveryNeeded(f"{path} has a damaged end: {problem}") from problem
            was_shortened = _recover(segments, segments.active.base_offset, epochs, holes_end)
    else:
        was_shortened = _recover(segments, recovery_point, epochs, holes_end)
    log_end_offset = segments.active.next_offset
    log_start_offset = max(log_start_offset, segments.first.base_offset)
    if log_end_offset < max(log_start_offset, recovery_point) and not may_recover:
        _close(segments)
        raise RecoveryNeeded(f"{path} ends at offset {log_end_offset}, below its recovery point or start offset")
    if log_end_offset < log_start_offset:
        # All records from the log start offset on are lost.
        for segment in segments.replace_all(Segment.create(files, path, log_start_offset, interval=interval)):
            segment.unlink()
        log_end_offset, was_shortened = log_start_offset, True
    was_shortened |= log_end_offset < recovery_point
    if not epochs.is_readable:
        _rebuild_epochs(segments, epochs)
    epochs.truncate_from_end(log_end_offset)
    epochs.truncate_from_start(log_start_offset)
    snapshots = ProducerSnapshots(filesystem, path, names)
    producers = rebuild_producers(segments, snapshots, log_end_offset)
    snapshots.remove_strays(segment.base_offset for segment in segments)
    return OpenLog(
        files,
        path,
        config,
        segments=segments,
        leader_epochs=epochs,
        producers=producers,
        snapshots=snapshots,
        log_start_offset=log_start_offset,
        log_end_offset=log_end_offset,
        recovery_point=log_end_offset if is_clean else min(recovery_point, log_end_offset),
        cleaner_offset=cleaner_offset,
        was_shortened=was_shortened,
        random_below=random_below,
    )


def _close(segments: SegmentList) -> None:
    for segment in segments:
        segment.close()


def _recover(segments: SegmentList, recovery_point: int, epochs: LeaderEpochs, holes_end: int) -> bool:
    """Recovers the segments from the one with the recovery point on. Returns whether the log was truncated.

    From `holes_end` on a segment that ends before the next one begins has lost batches: all later segments are deleted.
    Before it, compaction may have removed the batches. A gap beyond the segment's range of offsets is a follower's copy
    of a gap in the leader's log.
    """
    first = segments.floor_number(recovery_point)
    epochs_changed = False
    was_truncated = False
    for number in range(first, len(segments)):
        segment = segments[number]
        segment.is_active = True  # the last one stays active
        size = segment.ensure_size()
        end = 0
        for position, header in _recovered_batches(segment, recovery_point):
            if header.leader_epoch > epochs.latest:
                epochs_changed |= epochs.note(header.leader_epoch, start_offset=header.base_offset)
            end = position + header.size
        next_base = segments.end_of(number)
        has_hole = (
            next_base is not None
            and segment.next_offset < next_base <= segment.last_possible_offset
            and next_base > holes_end
        )
        if end < size:
            # Fsync: after a roll the recovery point is in a later segment, and no recovery checks this one again.
            segment.file.open().truncate(end)
            segment.file.open().sync()
            segment.size = end
        if next_base is not None and (end < size or has_hole or segment.next_offset > next_base):
            for later in segments.pop_behind(number):
                later.unlink()
            segment.is_new = True  # the next flush has to fsync the directory too: the deleted names must not return
            was_truncated = True
        was_truncated |= end < size
        if was_truncated:
            break
        if next_base is not None:
            segment.become_inactive()
            segment.is_active = False
    if epochs_changed and epochs.is_readable:
        epochs.write()
    return was_truncated


def _recovered_batches(segment: Segment, recovery_point: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yields every valid batch from the recovery point on, and adds it to the indexes of the segment."""
    position = _trusted_start(segment, recovery_point)
    segment.bytes_since_entry = 0
    next_offset = segment.base_offset
    for at, header in _valid_batches(segment, position):
        if header.base_offset < next_offset or header.last_offset > segment.last_possible_offset:
            return
        next_offset = header.last_offset + 1
        segment.note(at, header.size, header.last_offset, header.max_timestamp)
        yield at, header
    if segment.size and segment.first_timestamp < 0 and position:
        segment.first_timestamp = segment.header_at(0).max_timestamp


def _trusted_start(segment: Segment, recovery_point: int) -> int:
    """Returns the position of the last valid indexed batch below the recovery point; 0, with empty indexes, if none is.

    A damaged batch is not trusted although it was fsynced: recovery starts before it, and truncates the log there.
    """
    written = segment.index_files.read_sorted()
    if written is not None:
        offset_index, time_index = written
        offset_index.truncate(offset_index.floor(recovery_point - 1 - segment.base_offset) + 1)
        while len(offset_index):
            last_offset, position = offset_index.keys[-1] + segment.base_offset, offset_index.values[-1]
            _, header = next(_valid_batches(segment, position), (-1, None))
            if header is not None and header.last_offset == last_offset and header.base_offset >= segment.base_offset:
                time_index.truncate_values_from(offset_index.keys[-1] + 1)
                segment.start_indexes(offset_index, time_index, floor=header.base_offset - 1)
                return position
            offset_index.truncate(len(offset_index) - 1)
    segment.start_indexes(new_offset_index(), new_time_index(), floor=segment.base_offset - 1)
    return 0


def _valid_batches(segment: Segment, position: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yields batches up to the first that is incomplete or has a wrong CRC."""
    handle, size = segment.file.open(), segment.ensure_size()
    chunk, start = b"", position
    while size - position >= HEADER_SIZE:
        at = position - start
        if len(chunk) - at < LOG_OVERHEAD or len(chunk) - at < _claimed_size(chunk, at):
            chunk, start, at = handle.read_at(min(_CHUNK, size - position), position), position, 0
            wanted = _claimed_size(chunk, 0)
            if len(chunk) < wanted <= size - position:
                chunk = handle.read_at(wanted, position)
        try:
            header = validate_stored_batch(chunk, at)
        except InvalidBatch:
            return
        yield position, header
        position += header.size


def _claimed_size(chunk: bytes, at: int) -> int:
    return int.from_bytes(chunk[at + 8 : at + LOG_OVERHEAD], "big", signed=True) + LOG_OVERHEAD


def _rebuild_epochs(segments: SegmentList, epochs: LeaderEpochs) -> None:
    epochs.clear()
    for segment in segments:
        for _position, header in segment.headers():
            if header.leader_epoch > epochs.latest:
                epochs.note(header.leader_epoch, start_offset=header.base_offset)
    epochs.write()
