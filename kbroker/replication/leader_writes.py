"""Records and bytes that were written to a partition while this broker led it.

The rest of its log was fetched from other leaders. Nothing is counted for each write: the log's own numbers are read
when a leadership begins and ends. Never opens a log.
"""

from __future__ import annotations

from typing import NamedTuple

from kbroker.log.partition_log import PartitionLog

__all__ = ["LeaderWrites", "Written"]


class Written(NamedTuple):
    records: int
    bytes: int


class LeaderWrites:
    __slots__ = ("_earlier", "_start")

    def __init__(self) -> None:
        self._earlier = Written(0, 0)
        """Written in leaderships that have ended."""
        self._start: Written | None = None
        """End offset and appended bytes of the log at the start of the leadership; None if another broker leads."""

    def begin(self, log: PartitionLog) -> None:
        """Counts what is written from now on. No-op if that is so already."""
        if self._start is None:
            self._start = _end_of(log)

    def end(self, log: PartitionLog) -> None:
        self._earlier, self._start = self.total(log), None

    def total(self, log: PartitionLog) -> Written:
        """Returns what was written in all leaderships since the partition was opened."""
        if self._start is None:
            return self._earlier
        now = _end_of(log)
        return Written(
            self._earlier.records + max(now.records - self._start.records, 0),
            self._earlier.bytes + max(now.bytes - self._start.bytes, 0),
        )


def _end_of(log: PartitionLog) -> Written:
    return Written(log.known_offsets[1], log.appended_bytes)
