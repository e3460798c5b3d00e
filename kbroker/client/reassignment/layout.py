"""Values of a plan: the brokers with their replicas, the moves, and the load of each broker before and after them.

Pure: no requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kbroker.names import TopicPartition

__all__ = [
    "BrokerLoad",
    "ClusterLayout",
    "PartitionLayout",
    "PartitionMove",
    "ReassignmentPlan",
    "loads",
    "partition_text",
]


def partition_text(key: TopicPartition) -> str:
    """Returns the name that Kafka gives a partition: orders-0."""
    return f"{key[0]}-{key[1]}"


class PartitionLayout(NamedTuple):
    topic: str
    partition: int
    replicas: tuple[int, ...]
    """The preferred leader first."""
    isr: tuple[int, ...]
    leader: int
    """-1 if the partition has no leader."""
    size_bytes: int = 0
    """Size of one replica."""

    @property
    def key(self) -> TopicPartition:
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    racks: Mapping[int, str | None]
    """The live brokers, with the rack of each."""
    partitions: tuple[PartitionLayout, ...]

    @property
    def known_racks(self) -> dict[int, str]:
        """Returns the rack of each live broker; empty if a broker has none: Kafka ignores racks then, too."""
        known = {broker_id: rack for broker_id, rack in self.racks.items() if rack is not None}
        return known if len(known) == len(self.racks) else {}


class BrokerLoad(NamedTuple):
    leaders: int
    """Partitions whose preferred leader is this broker."""
    replicas: int
    size_bytes: int


class PartitionMove(NamedTuple):
    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    leader: int
    """The broker that the new replicas copy from; -1 if the partition has no leader."""
    size_bytes: int = 0
    """Size of one replica."""

    @property
    def key(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def adding(self) -> tuple[int, ...]:
        return tuple(broker_id for broker_id in self.after if broker_id not in self.before)

    @property
    def removing(self) -> tuple[int, ...]:
        return tuple(broker_id for broker_id in self.before if broker_id not in self.after)

    @property
    def copied_bytes(self) -> int:
        return self.size_bytes * len(self.adding)


@dataclass(frozen=True, slots=True)
class ReassignmentPlan:
    moves: tuple[PartitionMove, ...]
    before: Mapping[int, BrokerLoad]
    """The load of each live broker."""
    after: Mapping[int, BrokerLoad]

    @property
    def added_replicas(self) -> int:
        return sum(len(move.adding) for move in self.moves)

    @property
    def copied_bytes(self) -> int:
        return sum(move.copied_bytes for move in self.moves)


def loads(brokers: Iterable[int], assigned: Iterable[tuple[tuple[int, ...], int]]) -> dict[int, BrokerLoad]:
    """Returns the load of each broker. `assigned`: the replicas of each partition, and the size of one replica."""
    leaders = dict.fromkeys(brokers, 0)
    replicas, sizes = dict(leaders), dict(leaders)
    for broker_ids, size_bytes in assigned:
        for place, broker_id in enumerate(broker_ids):
            if broker_id in leaders:
                leaders[broker_id] += place == 0
                replicas[broker_id] += 1
                sizes[broker_id] += size_bytes
    return {
        broker_id: BrokerLoad(leaders[broker_id], replicas[broker_id], sizes[broker_id])
        for broker_id in sorted(leaders)
    }
