"""The next segment of a log. A part of PartitionLog, which decides when it is time, and whose state it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.log.segment import Segment

if TYPE_CHECKING:
    from kbroker.log.partition_log import PartitionLog

__all__ = ["new_jitter", "new_segment", "no_jitter", "roll"]


def no_jitter(_bound: int) -> int:
    return 0


def roll(log: PartitionLog, now_ms: int, base_offset: int | None) -> Segment:
    log.commit()
    old = log._active
    base = log._log_end_offset if base_offset is None else base_offset
    if base == old.base_offset:
        return old  # empty
    old.become_inactive()
    log.snapshots.take(log._producers, base)
    new = new_segment(log, base, now_ms)
    old.is_active = False
    log.segments.append(new)
    log._active = new
    if log._high_watermark >= base:
        log._hw_segment, log._hw_position = new, 0
    return new


def new_segment(log: PartitionLog, base_offset: int, now_ms: int) -> Segment:
    config = log.config
    segment = Segment.create(
        log.files,
        log.path,
        base_offset,
        config.index_interval_bytes,
        preallocate_bytes=config.segment_bytes if config.preallocate else 0,
    )
    segment.created_ms = now_ms
    segment.roll_jitter_ms = new_jitter(log)
    return segment


def new_jitter(log: PartitionLog) -> int:
    bound = min(log.config.segment_jitter_ms, log.config.segment_ms)
    return log._random_below(bound) if bound > 0 else 0
