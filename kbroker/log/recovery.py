"""From the files of a partition to the state of its log: a clean start, and the start after a crash.

After a crash what lies past the recovery point is read and checked, batch for batch; the valid prefix is kept, the rest
cut off, indexes and producer state are built anew. Below the recovery point the files are trusted: they were fsynced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kbroker.errors import RecoveryNeeded
from kbroker.log.cleaned_segment import CLEANED_SUFFIX, complete_swaps
from kbroker.log.file_cache import FileCache
from kbroker.log.leader_epochs import LeaderEpochs
from kbroker.log.log_config import UNLIMITED, LogConfig
from kbroker.log.offset_index import new_offset_index
from kbroker.log.producer_replay import ProducerSnapshots, rebuild_producers
from kbroker.log.producer_state import ProducerState
from kbroker.log.segment import DELETED_SUFFIX, INDEX_SUFFIXES, LOG_SUFFIX, Segment
from kbroker.log.segment_list import SegmentList
from kbroker.log.time_index import new_time_index
from kbroker.protocol.record_batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, InvalidBatch, validate_stored_batch

__all__ = ["LEADER_EPOCH_CHECKPOINT", "LoadedLog", "load_log"]

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
_LEFT_OVER = (DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")
_SEGMENT_NAME = re.compile(r"[0-9]{20}\.log")
_CHUNK = 1 << 20


@dataclass(slots=True)
class LoadedLog:
    segments: SegmentList
    epochs: LeaderEpochs
    producers: ProducerState
    snapshots: ProducerSnapshots
    log_start_offset: int
    log_end_offset: int
    was_shortened: bool


def load_log(
    files: FileCache,
    path: str,
    config: LogConfig,
    *,
    log_start_offset: int = 0,
    recovery_point: int = 0,
    cleaner_offset: int = 0,
    is_clean: bool = True,
    may_recover: bool = True,
) -> LoadedLog:
    """`cleaner_offset`: up to there it has been compacted, and may have holes. Unless it `may_recover`, a log that is
    shorter than it was left, or has to be cut, is RecoveryNeeded, and not touched."""
    if not (is_clean or may_recover):
        raise RecoveryNeeded(f"{path} was not closed and has to be recovered")
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
        or [Segment.create(files, path, log_start_offset, interval)]
    )
    epochs = LeaderEpochs(filesystem, f"{path}/{LEADER_EPOCH_CHECKPOINT}")
    was_shortened = False
    holes_end = UNLIMITED if config.is_compacted else cleaner_offset
    if is_clean:
        try:
            segments.active.load()
        except InvalidBatch as problem:
            if not may_recover:
                _close(segments)
                raise RecoveryNeeded(f"{path} is damaged at its end: {problem}") from problem
            was_shortened = _recover(segments, segments.active.base_offset, epochs, holes_end)
    else:
        was_shortened = _recover(segments, recovery_point, epochs, holes_end)
    log_end_offset = segments.active.next_offset
    log_start_offset = max(log_start_offset, segments.first.base_offset)
    if log_end_offset < max(log_start_offset, recovery_point) and not may_recover:
        _close(segments)
        raise RecoveryNeeded(f"{path} ends at offset {log_end_offset}, and was longer")
    if log_end_offset < log_start_offset:
        # What the start offset speaks of is gone altogether.
        for segment in segments.replace_all(Segment.create(files, path, log_start_offset, interval)):
            _unlink(files, segment)
        log_end_offset, was_shortened = log_start_offset, True
    was_shortened |= log_end_offset < recovery_point
    if not epochs.is_readable:
        _rebuild_epochs(segments, epochs)
    epochs.truncate_from_end(log_end_offset)
    epochs.truncate_from_start(log_start_offset)
    snapshots = ProducerSnapshots(filesystem, path, names)
    producers = rebuild_producers(segments, snapshots, log_end_offset)
    snapshots.remove_strays(segment.base_offset for segment in segments)
    return LoadedLog(segments, epochs, producers, snapshots, log_start_offset, log_end_offset, was_shortened)


def _close(segments: SegmentList) -> None:
    for segment in segments:
        segment.close()


def _recover(segments: SegmentList, recovery_point: int, epochs: LeaderEpochs, holes_end: int) -> bool:
    """True if anything was cut off. All the segments before the recovery point's are taken as they are.

    Behind `holes_end` a segment that does not reach the next one has lost something: nothing after it can be right.
    """
    first = segments.floor_number(recovery_point)
    epochs_changed = False
    was_cut = False
    for number in range(first, len(segments)):
        segment = segments[number]
        segment.is_active = True  # whoever comes last stays so
        size = segment.ensure_size()
        end = 0
        for position, header in _recovered_batches(segment, recovery_point):
            if header.leader_epoch > epochs.latest:
                epochs_changed |= epochs.note(header.leader_epoch, header.base_offset)
            end = position + header.size
        next_base = segments.end_of(number)
        has_hole = next_base is not None and segment.next_offset < next_base and next_base > holes_end
        if end < size:
            segment.file.open().truncate(end)
            segment.size = end
        if next_base is not None and (end < size or has_hole or segment.next_offset > next_base):
            for later in segments.pop_behind(number):
                _unlink(later.file_cache, later)
            was_cut = True
        was_cut |= end < size
        if was_cut:
            break
        if next_base is not None:
            segment.become_inactive()
            segment.is_active = False
    if epochs_changed and epochs.is_readable:
        epochs.write()
    return was_cut


def _recovered_batches(segment: Segment, recovery_point: int) -> Iterator[tuple[int, BatchHeader]]:
    """Every valid batch past the recovery point, taken into the segment's indexes as it comes."""
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
    """The position of the last indexed batch that was fsynced; 0, and empty indexes, if there is none to trust."""
    written = segment.read_written_indexes()
    if written is not None:
        offset_index, time_index = written
        offset_index.truncate(offset_index.floor(recovery_point - 1 - segment.base_offset) + 1)
        while len(offset_index):
            last_offset, position = offset_index.keys[-1] + segment.base_offset, offset_index.values[-1]
            if _has_batch(segment, position, last_offset):
                time_index.truncate_values_from(offset_index.keys[-1] + 1)
                segment.start_indexes(offset_index, time_index, floor=segment.header_at(position).base_offset - 1)
                return position
            offset_index.truncate(0)
    segment.start_indexes(new_offset_index(), new_time_index(), floor=segment.base_offset - 1)
    return 0


def _has_batch(segment: Segment, position: int, last_offset: int) -> bool:
    try:
        return segment.header_at(position).last_offset == last_offset
    except InvalidBatch:
        return False


def _valid_batches(segment: Segment, position: int) -> Iterator[tuple[int, BatchHeader]]:
    """Batches whose bytes are whole and whose CRC is right, up to the first that is not."""
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
            return  # torn or rotten
        yield position, header
        position += header.size


def _claimed_size(chunk: bytes, at: int) -> int:
    return int.from_bytes(chunk[at + 8 : at + LOG_OVERHEAD], "big", signed=True) + LOG_OVERHEAD


def _rebuild_epochs(segments: SegmentList, epochs: LeaderEpochs) -> None:
    epochs.clear()
    for segment in segments:
        for _position, header in segment.headers():
            if header.leader_epoch > epochs.latest:
                epochs.note(header.leader_epoch, header.base_offset)
    epochs.write()


def _unlink(files: FileCache, segment: Segment) -> None:
    segment.file.generation += 1
    segment.file.unlink()
    for suffix in INDEX_SUFFIXES:
        files.filesystem.remove(segment.file.path[: -len(LOG_SUFFIX)] + suffix)
