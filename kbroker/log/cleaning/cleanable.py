"""Finds the part of a log that can be compacted: from the first dirty offset to the first uncleanable offset.

Never the active segment, records that are not committed, or records younger than min.compaction.lag.ms. Unlike Kafka,
never records that are not fsynced: a crash must not lose the newest value of a key after compaction has removed the
older ones.
"""

from __future__ import annotations

from typing import NamedTuple

from kbroker.log.log_config import UNLIMITED, LogConfig
from kbroker.log.segments.segment import Segment
from kbroker.log.segments.segment_list import SegmentList

__all__ = ["Cleanable", "find_cleanable"]


class Cleanable(NamedTuple):
    first_dirty_offset: int
    first_uncleanable_offset: int
    """Base offset of a segment: everything before it may be compacted."""
    clean_bytes: int
    cleanable_bytes: int
    overdue_ms: int
    """Time in ms by which the oldest dirty record exceeds max.compaction.lag.ms."""
    is_checkpoint_wrong: bool = False

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        if not self.cleanable_bytes:
            return False
        return self.overdue_ms > 0 or self.dirty_ratio > config.min_cleanable_dirty_ratio


def find_cleanable(
    segments: SegmentList,
    config: LogConfig,
    *,
    checkpoint: int | None,
    now_ms: int,
    log_start_offset: int,
    log_end_offset: int,
    stable_offset: int,
) -> Cleanable:
    """`checkpoint`: offset up to which the log is compacted. `stable_offset`: records below it are final."""
    first_dirty = log_start_offset if checkpoint is None else checkpoint
    is_wrong = not log_start_offset <= first_dirty <= log_end_offset
    if is_wrong:
        first_dirty = log_start_offset  # retention or truncation has removed that part
    active_number = len(segments) - 1
    first_number = segments.floor_number(first_dirty)
    end_number = min(segments.floor_number(stable_offset), active_number)
    if config.min_compaction_lag_ms > 0:
        for number in range(first_number, end_number):
            if segments[number].largest_timestamp() > now_ms - config.min_compaction_lag_ms:
                end_number = number
                break
    dirty = [segments[number] for number in range(first_number, end_number)]
    return Cleanable(
        first_dirty,
        segments[end_number].base_offset,
        sum(segment.ensure_size() for segment in segments if segment.base_offset < first_dirty),
        sum(segment.ensure_size() for segment in dirty),
        _overdue_ms(segments, first_number, config.max_compaction_lag_ms, now_ms),
        is_wrong,
    )


def _overdue_ms(segments: SegmentList, first_number: int, max_lag_ms: int, now_ms: int) -> int:
    if max_lag_ms >= UNLIMITED:
        return 0
    waiting = [segments[number] for number in range(first_number, len(segments) - 1)]
    timestamps = [timestamp for segment in waiting if (timestamp := _first_timestamp(segment)) > 0]
    return max(now_ms - max_lag_ms - min(timestamps, default=now_ms), 0)


def _first_timestamp(segment: Segment) -> int:
    if segment.first_timestamp < 0 and segment.ensure_size():
        segment.first_timestamp = segment.header_at(0).max_timestamp
    return segment.first_timestamp
