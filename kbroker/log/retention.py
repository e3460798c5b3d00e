"""Which segments at the front of a log may go: too old, too much, or before the log's start; and taking them off it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.log.log_config import LogConfig
from kbroker.log.segment import Segment
from kbroker.log.segment_list import SegmentList

if TYPE_CHECKING:
    from kbroker.log.partition_log import PartitionLog

__all__ = ["apply_retention", "count_deletable", "delete_records_before", "raise_log_start_offset"]


def apply_retention(log: PartitionLog, now_ms: int) -> int:
    """How many segments went. Their files are renamed, and wait among the doomed."""
    segments = log.segments
    count = count_deletable(
        segments,
        log.config,
        now_ms=now_ms,
        high_watermark=log.high_watermark,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
    )
    if not count:
        return 0
    if count == len(segments):
        log.roll(now_ms)
    due_ms = now_ms + log.config.file_delete_delay_ms
    for segment in segments.pop_first(count):
        log.doomed.add(due_ms, segment.mark_deleted())
    log.raise_log_start_offset(segments.first.base_offset)
    log.snapshots.remove_before(segments.first.base_offset)
    return count


def delete_records_before(log: PartitionLog, offset: int) -> int | None:
    high_watermark = log.high_watermark
    if offset == -1:
        offset = high_watermark
    if not 0 <= offset <= high_watermark:
        return None
    raise_log_start_offset(log, offset)
    return log.log_start_offset


def raise_log_start_offset(log: PartitionLog, offset: int) -> bool:
    offset = min(offset, log.log_end_offset)
    if offset <= log.log_start_offset:
        return False
    log._log_start_offset = offset
    log._epochs.truncate_from_start(offset)
    if log.high_watermark < offset:
        log.set_high_watermark(offset)
    return True


def count_deletable(
    segments: SegmentList,
    config: LogConfig,
    *,
    now_ms: int,
    high_watermark: int,
    log_start_offset: int,
    log_end_offset: int,
) -> int:
    """How many segments from the front may go. All of them may, if the active one is not empty: roll first then.

    Nothing at or above the high watermark is ever counted.
    """

    def count(is_deletable: Callable[[Segment, int], bool], start: int) -> int:
        number = start
        for segment in segments.from_number(start):
            end = segments.end_of(number)
            if end is None:
                end = log_end_offset
                if not segment.size:
                    break
            if end > high_watermark or not is_deletable(segment, end):
                break
            number += 1
        return number

    found = count(lambda _segment, end: end <= log_start_offset and end != log_end_offset, 0)
    if not config.is_deleted:
        return found
    if config.retention_ms >= 0:
        found = count(lambda segment, _end: now_ms - segment.largest_timestamp() > config.retention_ms, found)
    if config.retention_bytes >= 0:
        excess = sum(segment.ensure_size() for segment in segments.from_number(found)) - config.retention_bytes

        def is_excess(segment: Segment, _end: int) -> bool:
            nonlocal excess
            excess -= segment.ensure_size()
            return excess >= 0

        found = count(is_excess, found)
    return found
