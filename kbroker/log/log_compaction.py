"""What compaction asks of a log, on the loop: how much there is to do, what a round has to know, the swap at its end.

The work itself is `compaction`'s, in a thread; it never touches a log.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.log.cleanable import Cleanable, find_cleanable
from kbroker.log.cleaned_segment import CleanedSegment
from kbroker.log.compaction import Compaction, Limits, Pace, Source
from kbroker.log.partition_log import PartitionLog
from kbroker.log.segment import Segment

__all__ = ["begin_compaction", "cleanable_of", "replace_segments"]


def cleanable_of(log: PartitionLog, now_ms: int) -> Cleanable:
    """How much there is to compact."""
    log.load()
    return find_cleanable(
        log.segments,
        log.config,
        checkpoint=log.cleaner_offset,
        now_ms=now_ms,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        stable_offset=min(log.last_stable_offset, log.recovery_point),
    )


def begin_compaction(log: PartitionLog, cleanable: Cleanable, now_ms: int, limits: Limits, pace: Pace) -> Compaction:
    """All that a round has to know: it runs in a thread, and what it asks of the log it asks here."""
    end_offset = cleanable.first_uncleanable_offset
    segments = log.segments
    sources = [
        Source(segment, segment.file.path, segment.base_offset, end, segment.ensure_size())
        for number, segment in enumerate(segments)
        if (end := segments.end_of(number)) is not None and end <= end_offset
    ]
    return Compaction(
        log.files.filesystem,
        log.path,
        log.config,
        sources,
        cleanable,
        aborted=log.aborted_transactions(segments.first.base_offset, end_offset),
        producers=dict(log.producers.entries),
        now_ms=now_ms,
        limits=limits,
        pace=pace,
    )


def replace_segments(log: PartitionLog, old: Sequence[Segment], cleaned: CleanedSegment, now_ms: int) -> bool:
    """Puts what compaction has written in the place of these, at once for every reader. Slices of the old ones can be
    read on. False: they are not here any more, or not alone.

    StorageFailure: the files are half renamed; the next start completes it.
    """
    segments = log.segments
    number = segments.find_run(old)
    if number is None:
        return False
    cleaned.begin_swap()
    doomed = [file for segment in old for file in segment.mark_deleted()]
    cleaned.end_swap()
    log.doomed.add(now_ms + log.config.file_delete_delay_ms, doomed)
    new = Segment(log.files, log.path, cleaned.base_offset, log.config.index_interval_bytes)
    new.size = cleaned.size
    segments.replace_run(number, len(old), new)
    log.snapshots.remove_strays(segment.base_offset for segment in segments)
    log.set_high_watermark(log.high_watermark)  # which may have been in one of the old ones
    return True
