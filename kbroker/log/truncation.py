"""Cutting a log back: from an offset on, or all of it. A part of PartitionLog, whose state it changes.

Files that go are renamed, their generation is bumped (slices of them are not valid any more), and they are unlinked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbroker.log.producer_replay import rebuild_producers
from kbroker.log.rolling import new_segment
from kbroker.log.segment import Segment

if TYPE_CHECKING:
    from kbroker.log.partition_log import PartitionLog

__all__ = ["truncate_fully_and_start_at", "truncate_to"]


def truncate_to(log: PartitionLog, offset: int) -> bool:
    """True if there was anything."""
    segments = log.segments
    if offset >= log.log_end_offset:
        return False
    if offset < segments.first.base_offset:
        truncate_fully_and_start_at(log, offset)
        return True
    _begin(log)
    _discard(segments.pop_behind(segments.floor_number(offset)))
    segment = segments.active
    segment.ensure_size()
    segment.is_active = True
    position = segment.find(offset)
    if position >= 0:
        end_offset = min(segment.header_at(position).base_offset, offset)
        segment.truncate_to_position(position, max(end_offset, segment.base_offset))
    else:
        segment.rewind(offset)
    log._active = segment
    _finish(log, segment.next_offset)
    return True


def truncate_fully_and_start_at(log: PartitionLog, offset: int) -> None:
    _begin(log)
    # Renamed first: the new segment may have the name of an old one.
    _discard(list(log.segments))
    log._active = new_segment(log, offset, -1)
    log.segments.replace_all(log._active)
    log.snapshots.remove_all()
    log._epochs.clear()
    log._log_start_offset = offset
    _finish(log, offset)


def _begin(log: PartitionLog) -> None:
    assert not log._staged, "truncated with batches staged"
    log._flush.truncations += 1


def _discard(segments: Sequence[Segment]) -> None:
    for segment in segments:
        segment.file.generation += 1
        for file in segment.mark_deleted():
            file.unlink()


def _finish(log: PartitionLog, end_offset: int) -> None:
    log._log_end_offset = end_offset
    log.recovery_point = min(log.recovery_point, end_offset)
    if log.cleaner_offset is not None:
        log.cleaner_offset = min(log.cleaner_offset, end_offset)
    log._epochs.truncate_from_end(end_offset)
    log._log_start_offset = min(log._log_start_offset, end_offset)
    log._producers = rebuild_producers(log.segments, log.snapshots, end_offset)
    log.set_high_watermark(log._high_watermark)
