"""Part of compaction that runs on the loop: measures a log, starts a round, swaps the segments at its end.

The work in between is in `cleaning.compaction`, in a thread or a process, and never uses a log.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.log.cleaning.cleanable import Cleanable, find_cleanable
from kbroker.log.cleaning.cleaned_segment import CleanedFiles
from kbroker.log.cleaning.compaction import CompactionPlan, Limits, SourceSegment
from kbroker.log.open_log import OpenLog
from kbroker.log.segments.segment import Segment

__all__ = ["cleanable_of", "plan_compaction", "replace_segments"]


def cleanable_of(log: OpenLog, now_ms: int) -> Cleanable:
    """Returns how much of the log can be compacted."""
    return find_cleanable(
        log.segments,
        log.config,
        checkpoint=log.cleaner_offset,
        now_ms=now_ms,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        stable_offset=min(log.last_stable_offset, log.recovery_point),
    )


def plan_compaction(log: OpenLog, cleanable: Cleanable, now_ms: int, limits: Limits) -> CompactionPlan:
    """Copies everything that a round needs to know of the log, because the round runs elsewhere."""
    end_offset = cleanable.first_uncleanable_offset
    segments = log.segments
    sources = [
        SourceSegment(segment.file.path, segment.base_offset, end, segment.ensure_size())
        for number, segment in enumerate(segments)
        if (end := segments.end_of(number)) is not None and end <= end_offset
    ]
    return CompactionPlan(
        log.files.filesystem,
        log.path,
        log.config,
        sources,
        cleanable,
        log.aborted_transactions(segments.first.base_offset, end_offset),
        dict(log.producers.entries),
        now_ms,
        limits,
    )


def replace_segments(log: OpenLog, old: Sequence[Segment], cleaned: CleanedFiles, now_ms: int) -> bool:
    """Replaces segments with the one that compaction has written. Slices of the old segments stay valid.

    Returns False if the segments are not in the log any more, or not next to each other. Raises StorageFailure if only
    some files could be renamed; the next start completes the swap.
    """
    segments = log.segments
    number = segments.find_run(old)
    if number is None:
        return False
    cleaned.begin_swap()
    replaced = [file for segment in old for file in segment.mark_deleted()]
    cleaned.end_swap()
    log.pending_deletes.add(now_ms + log.config.file_delete_delay_ms, replaced)
    new = Segment(log.files, log.path, cleaned.base_offset, log.config.index_interval_bytes)
    new.size = cleaned.size
    segments.replace_run(number, len(old), new)
    log.snapshots.remove_strays(segment.base_offset for segment in segments)
    log.set_high_watermark(log.high_watermark)  # its position may be in a replaced segment
    return True
