"""Plan of a replay: slices of a table in the order of time, cut by offsets. Knows no Spark.

Each slice takes, of each partition, the offsets after the last slice up to the largest offset of its interval. So the
order of each partition stays, even where the timestamps of its records go back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["IntervalCount", "OffsetRange", "ReplaySlice", "plan_from_json", "plan_replay", "plan_to_json"]


class IntervalCount(NamedTuple):
    """Records of one partition in one interval of event time."""

    interval_ms: int
    """Beginning of the interval."""
    topic: str
    partition: int
    last_offset: int
    records: int


class OffsetRange(NamedTuple):
    topic: str
    partition: int
    after: int
    """Offset before the first one of the range."""
    last: int


class ReplaySlice(NamedTuple):
    time_ms: int
    """Beginning of its first interval."""
    records: int
    """Records of its intervals."""
    ranges: tuple[OffsetRange, ...]


def plan_replay(counts: Iterable[IntervalCount], *, min_records: int = 1) -> list[ReplaySlice]:
    """Returns the slices. Consecutive intervals are joined until a slice has `min_records`."""
    slices: list[ReplaySlice] = []
    ends: dict[tuple[str, int], int] = {}
    pending: list[IntervalCount] = []
    by_interval: dict[int, list[IntervalCount]] = {}
    for count in counts:
        by_interval.setdefault(count.interval_ms, []).append(count)
    for interval in sorted(by_interval):
        pending += by_interval[interval]
        ranges = _ranges(pending, ends)
        if ranges and _total(pending) >= min_records:
            slices.append(_slice(pending, ranges, ends))
            pending = []
    ranges = _ranges(pending, ends)
    if ranges:
        slices.append(_slice(pending, ranges, ends))
    elif pending:  # Their offsets are below those of earlier intervals.
        slices[-1] = slices[-1]._replace(records=slices[-1].records + _total(pending))
    return slices


def _total(counts: Iterable[IntervalCount]) -> int:
    return sum(count.records for count in counts)


def _ranges(counts: Iterable[IntervalCount], ends: Mapping[tuple[str, int], int]) -> tuple[OffsetRange, ...]:
    """Returns the offsets that no earlier slice has taken."""
    lasts: dict[tuple[str, int], int] = {}
    for count in counts:
        key = (count.topic, count.partition)
        lasts[key] = max(lasts.get(key, -1), count.last_offset)
    return tuple(
        OffsetRange(*key, after=ends.get(key, -1), last=last)
        for key, last in sorted(lasts.items())
        if last > ends.get(key, -1)
    )


def _slice(
    counts: Sequence[IntervalCount], ranges: tuple[OffsetRange, ...], ends: dict[tuple[str, int], int]
) -> ReplaySlice:
    ends.update({(offsets.topic, offsets.partition): offsets.last for offsets in ranges})
    return ReplaySlice(min(count.interval_ms for count in counts), _total(counts), ranges)


def plan_to_json(slices: Sequence[ReplaySlice]) -> list[Any]:
    return [[part.time_ms, part.records, [list(offsets) for offsets in part.ranges]] for part in slices]


def plan_from_json(value: list[Any]) -> list[ReplaySlice]:
    return [
        ReplaySlice(time_ms, records, tuple(OffsetRange(*offsets) for offsets in ranges))
        for time_ms, records, ranges in value
    ]
