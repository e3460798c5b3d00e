"""Rules of retention: which segments at the front of a log are too old, too much, or before the log start offset."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.log.log_config import LogConfig
from kbroker.log.segments.segment import Segment
from kbroker.log.segments.segment_list import SegmentList

__all__ = ["count_deletable"]


def count_deletable(
    segments: SegmentList,
    config: LogConfig,
    *,
    now_ms: int,
    high_watermark: int,
    log_start_offset: int,
    log_end_offset: int,
) -> int:
    """Returns how many segments at the front may be deleted; never a segment that reaches above the high watermark.

    If it counts the active segment too, which is not empty then, the caller has to roll first.
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
