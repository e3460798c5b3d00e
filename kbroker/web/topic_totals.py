"""What was written to and read from each topic, and the sum over all, which must not fall when a topic is deleted."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.replication.partition import Partition

__all__ = ["TopicTotals", "Traffic"]


class Traffic:
    """Of one topic; without a name, of all."""

    __slots__ = ("bytes_in", "bytes_out", "messages_in", "topic", "unparsable")

    def __init__(self, topic: str = "") -> None:
        self.topic = topic
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.unparsable = 0

    def add(self, partition: Partition) -> None:
        log = partition.log
        self.messages_in += log.known_offsets[1]
        self.bytes_in += log.appended_bytes
        self.bytes_out += partition.fetched_bytes
        self.unparsable += log.unparsable_batches

    def include(self, other: Traffic) -> None:
        self.messages_in += other.messages_in
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.unparsable += other.unparsable


class TopicTotals:
    """By topic id: a topic that was deleted and created again is another one."""

    def __init__(self) -> None:
        self._last: Mapping[bytes, Traffic] = {}
        self._gone = Traffic()

    def take(self, now: Mapping[bytes, Traffic]) -> None:
        for topic_id, traffic in self._last.items():
            if topic_id not in now:
                self._gone.include(traffic)
        self._last = now

    def sum(self) -> Traffic:
        total = Traffic()
        for traffic in (self._gone, *self._last.values()):
            total.include(traffic)
        return total
