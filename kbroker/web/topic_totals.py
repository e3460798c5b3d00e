"""Traffic of each topic, and totals over all topics. Totals never decrease, also when a topic is deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kbroker.replication.partition import Partition

__all__ = ["TopicTotals", "Traffic"]


@dataclass(slots=True)
class Traffic:
    """Traffic counters of one topic, or of all topics if `topic` is empty."""

    topic: str = ""
    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    bytes_rejected: int = 0
    replication_bytes_in: int = 0
    replication_bytes_out: int = 0
    reassignment_bytes_in: int = 0
    reassignment_bytes_out: int = 0
    unparsable: int = 0

    def add(self, partition: Partition) -> None:
        log = partition.log_handle
        written = partition.leader_writes.total(log)
        self.messages_in += written.records
        self.bytes_in += written.bytes
        self.bytes_out += partition.fetched_bytes
        self.replication_bytes_in += max(log.appended_bytes - written.bytes, 0)
        self.replication_bytes_out += partition.replicated_bytes
        self.bytes_rejected += partition.rejected_bytes
        self.reassignment_bytes_in += partition.reassignment_bytes_in
        self.reassignment_bytes_out += partition.reassignment_bytes_out
        self.unparsable += log.unparsable_batches

    def include(self, other: Traffic) -> None:
        self.messages_in += other.messages_in
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.replication_bytes_in += other.replication_bytes_in
        self.replication_bytes_out += other.replication_bytes_out
        self.bytes_rejected += other.bytes_rejected
        self.reassignment_bytes_in += other.reassignment_bytes_in
        self.reassignment_bytes_out += other.reassignment_bytes_out
        self.unparsable += other.unparsable


class TopicTotals:
    """Sums traffic by topic id, so that a topic that was deleted and recreated counts as two."""

    def __init__(self) -> None:
        self._last: Mapping[bytes, Traffic] = {}
        self._deleted = Traffic()

    def update(self, current: Mapping[bytes, Traffic]) -> None:
        """Sets the current counters; keeps the last counters of topics that are no longer in them."""
        for topic_id, traffic in self._last.items():
            if topic_id not in current:
                self._deleted.include(traffic)
        self._last = current

    def sum(self) -> Traffic:
        total = Traffic()
        for traffic in (self._deleted, *self._last.values()):
            total.include(traffic)
        return total
