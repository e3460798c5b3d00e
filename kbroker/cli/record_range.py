"""Range of offsets that a command reads from each partition of a topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster

__all__ = ["RecordRange", "find_range"]


class RecordRange(NamedTuple):
    """Partition -> offset, of the same partitions in each field."""

    starts: dict[int, int]
    ends: dict[int, int]
    """Exclusive."""
    earliest: dict[int, int]
    latest: dict[int, int]

    @property
    def length(self) -> int:
        """Returns the number of offsets. A compacted topic has fewer records."""
        return sum(max(self.ends[number] - start, 0) for number, start in self.starts.items())


async def find_range(
    cluster: Cluster,
    name: str,
    partitions: Sequence[int] = (),
    *,
    offset: str | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
    read_committed: bool = False,
) -> RecordRange:
    """Returns the range of each partition (none given: of all), up to its current end.

    `offset`: earliest, latest, a number, or -N for the last N. `since_ms` and `until_ms`: timestamps in its place, and
    in place of the end.
    """
    from kbroker.client.offsets import EARLIEST, LATEST, NO_OFFSET, list_offsets

    topic = await cluster.topic(name)
    numbers = [topic.partition(number).number for number in partitions] or [
        partition.number for partition in topic.partitions
    ]

    async def offsets_at(timestamp: int) -> dict[int, int]:
        found = await list_offsets(cluster, name, dict.fromkeys(numbers, timestamp), read_committed=read_committed)
        return {number: place.offset for number, place in found.items()}

    async def first_at(timestamp: int) -> dict[int, int]:
        found = await offsets_at(timestamp)
        return {number: latest[number] if offset == NO_OFFSET else offset for number, offset in found.items()}

    earliest, latest = await offsets_at(EARLIEST), await offsets_at(LATEST)
    ends = latest if until_ms is None else await first_at(until_ms)
    if since_ms is not None:
        starts = await first_at(since_ms)
    elif offset == "latest":
        starts = latest
    elif offset in (None, "earliest"):
        starts = earliest
    else:
        given = int(offset)
        starts = {number: max(latest[number] + given if given < 0 else given, earliest[number]) for number in numbers}
    return RecordRange(dict(starts), dict(ends), earliest, latest)
