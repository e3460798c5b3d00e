"""Origin of mirrored records, and the mapping of offsets between two clusters.

A mirror adds one header to each record: `kbroker.mirrored-from` with `<cluster id>:<offset>` of the record that it
copied. The header is the mapping of offsets: it is committed with the record, and no second store can disagree with it.
Within a partition the offsets of copies grow as the offsets of their sources do, so a copy is found by bisection.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from kbroker.client.cluster import Cluster
from kbroker.client.consuming import Consumer
from kbroker.client.offsets import EARLIEST, LATEST, list_offsets
from kbroker.protocol.records import Record

__all__ = [
    "ORIGIN_HEADER",
    "CopiedPartition",
    "Copies",
    "RecordCopy",
    "copied_from",
    "find_copy",
    "last_copy",
]

ORIGIN_HEADER: Final = "kbroker.mirrored-from"

_PROBE_BYTES: Final = 64 * 1024


class RecordCopy(NamedTuple):
    offset: int
    source_offset: int


class Copies(Protocol):
    """One partition that holds copies of records of another cluster."""

    async def bounds(self) -> tuple[int, int]:
        """Returns the first offset and the last stable offset."""
        ...

    async def first_copy(self, start: int, end: int) -> RecordCopy | None:
        """Returns the first copy with an offset from `start` to before `end`."""
        ...


def copied_from(record: Record, cluster_id: str) -> int | None:
    """Returns the offset that the record had in the cluster; None if it was not copied from there."""
    prefix = f"{cluster_id}:".encode()
    for name, value in record.headers:
        if name == ORIGIN_HEADER and value is not None and value.startswith(prefix):
            number = value[len(prefix) :]
            if number.isdigit():
                return int(number)
    return None


async def find_copy(copies: Copies, source_offset: int) -> RecordCopy | None:
    """Returns the first copy of a record at `source_offset` or later."""
    start, end = await copies.bounds()
    found: RecordCopy | None = None
    while start < end:
        middle = (start + end) // 2
        copy = await copies.first_copy(middle, end)
        if copy is not None and copy.source_offset < source_offset:
            start = copy.offset + 1
            continue
        if copy is not None:
            found = copy
        end = middle
    return found


async def last_copy(copies: Copies) -> RecordCopy | None:
    start, end = await copies.bounds()
    last: RecordCopy | None = None
    while start < end:
        middle = (start + end) // 2
        copy = await copies.first_copy(middle, end)
        if copy is None:
            end = middle
        else:
            last, start = copy, copy.offset + 1
    return last


class CopiedPartition:
    """Copies of the records of the cluster `origin` in a partition of another cluster, read through the wire."""

    def __init__(self, cluster: Cluster, topic: str, partition: int, *, origin: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._origin = origin

    async def bounds(self) -> tuple[int, int]:
        first = await self._offset(EARLIEST)
        return first, max(first, await self._offset(LATEST))

    async def _offset(self, time: int) -> int:
        found = await list_offsets(self._cluster, self._topic, {self._partition: time}, read_committed=True)
        return found[self._partition].offset

    async def first_copy(self, start: int, end: int) -> RecordCopy | None:
        consumer = Consumer(
            self._cluster, self._topic, {self._partition: start}, read_committed=True, partition_bytes=_PROBE_BYTES
        )
        while consumer.positions[self._partition] < end:
            fetched = await consumer.poll()
            for record in (record for part in fetched for record in part.records):
                if record.offset >= end:
                    return None
                source_offset = copied_from(record, self._origin)
                if source_offset is not None:
                    return RecordCopy(record.offset, source_offset)
        return None
