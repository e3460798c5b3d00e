"""Offsets by timestamp, for ListOffsets: time index, then offset index, then headers, then the records of one batch.

If the batch cannot be parsed, the result is its base offset, with `is_exact` False.
"""

from __future__ import annotations

from typing import NamedTuple

from kbroker.log.segments.offset_index import position_at_or_below
from kbroker.log.segments.segment import Segment
from kbroker.log.segments.segment_list import SegmentList
from kbroker.log.segments.time_index import last_timestamp
from kbroker.protocol.record_batch import BatchHeader, InvalidBatch
from kbroker.protocol.records import iter_records

__all__ = ["TimestampOffset", "find_max_timestamp", "find_timestamp"]


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int
    is_exact: bool = True  # False: the batch could not be parsed, and `offset` is where it begins


def find_timestamp(segments: SegmentList, timestamp: int, *, start_offset: int) -> TimestampOffset | None:
    """Returns the first record from `start_offset` on that is not older than `timestamp`; None if there is none."""
    for segment in segments.starting_with(start_offset):
        if _largest(segment) >= timestamp:
            found = _search(segment, timestamp, start_offset)
            if found is not None:
                return found
    return None


def find_max_timestamp(segments: SegmentList, start_offset: int) -> TimestampOffset | None:
    """Returns the first record with the largest timestamp of the log; None if no record has a timestamp."""
    best = max(segments.starting_with(start_offset), key=_largest)
    largest = _largest(best)
    return _search(best, largest, start_offset) if largest >= 0 else None


def _largest(segment: Segment) -> int:
    return segment.max_timestamp if segment.is_active else last_timestamp(segment.time_index)


def _search(segment: Segment, timestamp: int, start_offset: int) -> TimestampOffset | None:
    time_index = segment.time_index
    entry = time_index.floor(timestamp)
    relative = time_index.values[entry] if entry >= 0 else 0
    start = position_at_or_below(segment.offset_index, max(relative, start_offset - segment.base_offset))
    for position, header in segment.headers(start):
        if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
            found = _first_record(segment, position, header, timestamp, start_offset)
            if found is not None:
                return found
    return None


def _first_record(
    segment: Segment, position: int, header: BatchHeader, timestamp: int, start_offset: int
) -> TimestampOffset | None:
    try:
        for record in iter_records(segment.batch_at(position)):
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return TimestampOffset(record.timestamp, record.offset, header.leader_epoch)
    except InvalidBatch:
        offset = max(header.base_offset, start_offset)
        return TimestampOffset(header.max_timestamp, offset, header.leader_epoch, is_exact=False)
    return None
