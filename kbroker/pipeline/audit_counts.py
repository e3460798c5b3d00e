"""Counts of an audit: how many records of a topic passed a hop, by time window. Knows no Spark.

A count is a record of the audit topic. Its key names hop, instance, topic and window; its value is JSON:

    {"hop": "producer", "instance": "shop-1", "topic": "orders", "window_start_ms": 0, "window_ms": 60000, "records": 9}

A later count with the same key replaces the earlier one, so a count may be published twice. The counts of all instances
of a hop are added. Producers publish under hop `producer`, one instance for each process; the instances of other hops
are the batches of the audit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

__all__ = ["PRODUCER", "AuditCount", "ProducerCounts", "WindowCounts", "add_up", "parse_count", "window_start"]

PRODUCER: Final = "producer"


class AuditCount(NamedTuple):
    hop: str
    instance: str
    topic: str
    window_start_ms: int
    window_ms: int
    records: int

    @property
    def key(self) -> bytes:
        return json.dumps([self.hop, self.instance, self.topic, self.window_start_ms]).encode()

    @property
    def value(self) -> bytes:
        return json.dumps(self._asdict()).encode()


WindowCounts = Mapping[tuple[str, int], Mapping[str, int]]
"""Topic and start of the window -> hop -> number of records."""


def window_start(timestamp_ms: int, *, window_ms: int) -> int:
    return timestamp_ms - timestamp_ms % window_ms


def parse_count(value: bytes | None) -> AuditCount | None:
    """Returns None if the record is not a count."""
    try:
        fields: Any = json.loads(value or b"")
        count = AuditCount(**fields)
    except (ValueError, TypeError):
        return None
    texts = (count.hop, count.instance, count.topic)
    numbers = (count.window_start_ms, count.window_ms, count.records)
    is_count = all(type(text) is str for text in texts) and all(type(number) is int for number in numbers)
    return count if is_count and count.window_ms > 0 else None


def add_up(counts: Iterable[AuditCount], window_ms: int) -> WindowCounts:
    """Adds the last count of each instance. Smaller windows that divide `window_ms` are added to their window."""
    last = {count.key: count for count in counts}
    totals: dict[tuple[str, int], dict[str, int]] = {}
    for count in last.values():
        if window_ms % count.window_ms == 0:
            hops = totals.setdefault((count.topic, window_start(count.window_start_ms, window_ms=window_ms)), {})
            hops[count.hop] = hops.get(count.hop, 0) + count.records
    return totals


class ProducerCounts:
    """Counts the records of one producer process. The process writes `changed()` to the audit topic from time to time.

    `instance` must differ between processes, and between two runs of a process: a new run counts from 0.
    """

    def __init__(self, instance: str, *, window_ms: int = 60_000) -> None:
        self._instance = instance
        self._window_ms = window_ms
        self._counts: dict[tuple[str, int], int] = {}
        self._changed: set[tuple[str, int]] = set()

    def add(self, topic: str, timestamp_ms: int, records: int = 1) -> None:
        """Counts records that the broker has acknowledged."""
        window = (topic, window_start(timestamp_ms, window_ms=self._window_ms))
        self._counts[window] = self._counts.get(window, 0) + records
        self._changed.add(window)

    def changed(self) -> list[AuditCount]:
        """Returns the counts that changed since the last call."""
        changed, self._changed = sorted(self._changed), set()
        return [
            AuditCount(PRODUCER, self._instance, topic, start, self._window_ms, self._counts[topic, start])
            for topic, start in changed
        ]
