"""Slices of a replay: in the order of time, without changing the order of a partition."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from kbroker.pipeline.replay_plan import IntervalCount, OffsetRange, plan_from_json, plan_replay, plan_to_json


def test_each_interval_is_a_slice_of_all_partitions() -> None:
    counts = [IntervalCount(1000, "a", 0, 9, 10), IntervalCount(2000, "a", 0, 14, 5), IntervalCount(1000, "a", 1, 4, 5)]
    first, second = plan_replay(counts)
    assert (first.time_ms, first.records) == (1000, 15)
    assert first.ranges == (OffsetRange("a", 0, -1, 9), OffsetRange("a", 1, -1, 4))
    assert second == (2000, 5, (OffsetRange("a", 0, 9, 14),))


def test_small_intervals_are_joined() -> None:
    counts = [IntervalCount(time, "a", 0, time, 1) for time in range(10)]
    assert [part.records for part in plan_replay(counts, min_records=4)] == [4, 4, 2]


def test_offsets_below_those_of_an_earlier_interval_are_in_its_slice() -> None:
    counts = [IntervalCount(1000, "a", 0, 9, 6), IntervalCount(2000, "a", 0, 7, 4)]
    assert plan_replay(counts) == [(1000, 10, (OffsetRange("a", 0, -1, 9),))]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=60),
    st.integers(1, 20),
)
def test_every_record_is_in_one_slice_and_partitions_keep_their_order(
    records: list[tuple[int, int]], min_records: int
) -> None:
    """Records are (interval, partition); the offset is the position among those of the partition."""
    offsets: dict[int, int] = {}
    placed = []
    for interval, partition in records:
        offsets[partition] = offsets.get(partition, -1) + 1
        placed.append((interval, partition, offsets[partition]))
    groups: dict[tuple[int, int], list[int]] = {}
    for interval, partition, offset in placed:
        groups.setdefault((interval, partition), []).append(offset)
    counts = [IntervalCount(i, "t", p, max(found), len(found)) for (i, p), found in groups.items()]
    slices = plan_replay(counts, min_records=min_records)
    assert plan_from_json(json.loads(json.dumps(plan_to_json(slices)))) == slices
    assert sum(part.records for part in slices) == len(records)
    written = [
        (r.partition, offset) for part in slices for r in part.ranges for offset in range(r.after + 1, r.last + 1)
    ]
    assert sorted(written) == sorted((partition, offset) for _, partition, offset in placed)
    for partition in offsets:
        of_partition = [offset for number, offset in written if number == partition]
        assert of_partition == sorted(of_partition)
