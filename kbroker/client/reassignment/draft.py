"""Replicas of all partitions while a plan is made, with the load of each broker. Pure: no requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, islice
from typing import Final

from kbroker.client.reassignment.layout import (
    ClusterLayout,
    PartitionLayout,
    PartitionMove,
    ReassignmentPlan,
    loads,
)
from kbroker.names import TopicPartition

__all__ = ["PlacementDraft"]

_BALANCED_DIFFERENCE: Final = 1
"""Brokers whose counts differ by this much or less are balanced: a move would only exchange their roles."""
_MAX_CANDIDATES: Final = 100
"""Replicas that are compared for one move: with all of them, a plan for 10,000 partitions would take a minute."""


class PlacementDraft:
    """Copy of a layout that changes until it is the plan. Only live brokers have a load."""

    def __init__(self, layout: ClusterLayout) -> None:
        self.brokers = sorted(layout.racks)
        self.partitions: dict[TopicPartition, PartitionLayout] = {
            partition.key: partition for partition in sorted(layout.partitions)
        }
        self.replicas = {key: partition.replicas for key, partition in self.partitions.items()}
        self._racks = layout.known_racks
        # Dicts in place of sets: the same cluster always gets the same plan.
        self._held: dict[int, dict[str, dict[TopicPartition, None]]] = {broker_id: {} for broker_id in self.brokers}
        self._led: dict[int, dict[TopicPartition, None]] = {broker_id: {} for broker_id in self.brokers}
        self._counts: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()
        for key, replicas in self.replicas.items():
            self._count(key, replicas, 1)

    def assign(self, key: TopicPartition, replicas: tuple[int, ...]) -> None:
        self._count(key, self.replicas[key], -1)
        self.replicas[key] = replicas
        self._count(key, replicas, 1)

    def substitute(self, key: TopicPartition, *, source: int, target: int) -> None:
        """Puts `target` in the place of `source`."""
        self.assign(key, tuple(target if broker_id == source else broker_id for broker_id in self.replicas[key]))

    def _count(self, key: TopicPartition, replicas: tuple[int, ...], sign: int) -> None:
        for broker_id in replicas:
            if broker_id in self._held:
                _add_or_remove(self._held[broker_id].setdefault(key[0], {}), key, sign)
                self._counts[broker_id] += sign
                self._bytes[broker_id] += sign * self.partitions[key].size_bytes
        if replicas and replicas[0] in self._led:
            _add_or_remove(self._led[replicas[0]], key, sign)

    def _of_topic(self, broker_id: int, topic: str) -> int:
        return len(self._held[broker_id].get(topic, ()))

    def rack_count(self, replicas: Iterable[int]) -> int:
        """Returns the number of racks of the replicas; 0 if racks are not known. A dead broker has no rack."""
        return len({self._racks[broker_id] for broker_id in replicas if broker_id in self._racks})

    # Targets

    def best_target(self, key: TopicPartition, *, without: int | None = None) -> int | None:
        """Returns the broker for a new replica of a partition, or None if there is no broker left.

        Takes the broker that brings the most racks, then the one with the fewest replicas. `without`: the replica
        that the new one replaces.
        """
        kept = [broker_id for broker_id in self.replicas[key] if broker_id != without]
        candidates = [broker_id for broker_id in self.brokers if broker_id not in (*self.replicas[key], without)]
        return min(
            candidates,
            key=lambda broker_id: (
                -self.rack_count([*kept, broker_id]),
                self._counts[broker_id],
                self._of_topic(broker_id, key[0]),
                self._bytes[broker_id],
                broker_id,
            ),
            default=None,
        )

    def least_useful(self, key: TopicPartition) -> int:
        """Returns the replica to remove when a partition gets fewer: a dead one, then one that is not in sync.

        Then one whose removal keeps the racks, then a follower, then the one on the broker with the most replicas.
        """
        partition, replicas = self.partitions[key], self.replicas[key]

        def rank(broker_id: int) -> tuple[object, ...]:
            others = [other for other in replicas if other != broker_id]
            return (
                broker_id in self._held,
                broker_id in partition.isr,
                -self.rack_count(others),
                broker_id == replicas[0],
                -self._counts[broker_id],
                -broker_id,
            )

        return min(replicas, key=rank)

    # Spreading

    def spread_racks(self) -> None:
        """Moves replicas that share a rack to racks that have no replica of their partition."""
        for key in self.replicas:
            while (step := self._rack_step(key)) is not None:
                source, target = step
                self.substitute(key, source=source, target=target)

    def _rack_step(self, key: TopicPartition) -> tuple[int, int] | None:
        replicas = self.replicas[key]
        racks = self.rack_count(replicas)
        if racks == min(len(replicas), len(set(self._racks.values()))):
            return None
        steps = []
        for source in replicas:
            target = self.best_target(key, without=source)
            if target is not None and self.rack_count(self._with(replicas, source, target)) > racks:
                steps.append((-self._counts[source], source, target))
        return min(steps)[1:] if steps else None

    def spread_replicas(self) -> None:
        """Moves replicas from brokers with more to brokers with fewer, until all counts are as equal as racks allow.

        Each move takes one replica from a broker with at least two more than its new one. So without racks, no plan
        with fewer moves has equal counts.
        """
        while (step := self._replica_step()) is not None:
            key, source, target = step
            self.substitute(key, source=source, target=target)

    def _replica_step(self) -> tuple[TopicPartition, int, int] | None:
        for source, target in self._uneven_pairs():
            keys = self._movable(source, target)
            if keys:
                return self._best_move(keys, source, target), source, target
        return None

    def _uneven_pairs(self) -> Iterator[tuple[int, int]]:
        """Yields pairs of brokers with different counts of replicas, the largest difference first."""
        ordered = sorted(self.brokers, key=lambda broker_id: (self._counts[broker_id], broker_id))
        if self._is_uneven(ordered[-1], ordered[0]):
            yield ordered[-1], ordered[0]  # nearly always the pair that is used: saves the sorting of all pairs
        pairs = [
            (self._counts[target] - self._counts[source], source, target)
            for source in ordered
            for target in ordered
            if self._is_uneven(source, target)
        ]
        for _difference, source, target in sorted(pairs):
            yield source, target

    def _is_uneven(self, source: int, target: int) -> bool:
        return self._counts[source] - self._counts[target] > _BALANCED_DIFFERENCE

    def _movable(self, source: int, target: int) -> list[TopicPartition]:
        """Returns partitions that `source` has and `target` may get.

        They are of the topics of which `source` has the most partitions more than `target`, as far as a move changes
        the balance of a topic.
        """
        by_surplus: dict[int, list[Iterable[TopicPartition]]] = {}
        for topic, keys in self._held[source].items():
            surplus = min(len(keys) - self._of_topic(target, topic), _BALANCED_DIFFERENCE + 1)
            by_surplus.setdefault(surplus, []).append(keys)
        for surplus in sorted(by_surplus, reverse=True):
            movable = (
                key
                for key in chain.from_iterable(by_surplus[surplus])
                if target not in self.replicas[key] and self._keeps_racks(key, source, target)
            )
            if found := list(islice(movable, _MAX_CANDIDATES)):
                return found
        return []

    def _keeps_racks(self, key: TopicPartition, source: int, target: int) -> bool:
        if not self._racks:
            return True
        replicas = self.replicas[key]
        return self.rack_count(self._with(replicas, source, target)) >= self.rack_count(replicas)

    def _with(self, replicas: tuple[int, ...], source: int, target: int) -> list[int]:
        return [target if broker_id == source else broker_id for broker_id in replicas]

    def _best_move(self, keys: Iterable[TopicPartition], source: int, target: int) -> TopicPartition:
        """Returns the partition that moves: one that `source` leads if `target` leads fewer, or a follower if not.

        Then the one whose size evens out the bytes of both brokers.
        """
        wants_leader = len(self._led[source]) - len(self._led[target]) > _BALANCED_DIFFERENCE
        wanted_bytes = max(0, self._bytes[source] - self._bytes[target]) / 2
        led, partitions = self._led[source], self.partitions
        return min(
            keys,
            key=lambda key: ((key in led) != wants_leader, abs(wanted_bytes - partitions[key].size_bytes), key),
        )

    def spread_leaders(self, keys: Collection[TopicPartition]) -> None:
        """Changes the order of the replicas of these partitions, until preferred leaders are as equal as possible."""
        allowed = set(keys)
        while (path := self._leader_path(allowed)) is not None:
            for key, leader in path:
                others = [broker_id for broker_id in self.replicas[key] if broker_id != leader]
                self.assign(key, (leader, *others))

    def _leader_path(self, allowed: set[TopicPartition]) -> list[tuple[TopicPartition, int]] | None:
        """Returns the changes of leaders that take one partition from a broker and give one to a broker with fewer.

        The brokers between them give one and get one. None if no broker leads two more than one it can give to.
        """
        for first in sorted(self.brokers, key=lambda broker_id: (-len(self._led[broker_id]), broker_id)):
            reached: dict[int, list[tuple[TopicPartition, int]]] = {first: []}
            for leader in (queue := [first]):
                for key in filter(allowed.__contains__, self._led[leader]):
                    for follower in self.replicas[key]:
                        if follower in reached or follower not in self._led:
                            continue
                        reached[follower] = [*reached[leader], (key, follower)]
                        if len(self._led[first]) - len(self._led[follower]) > _BALANCED_DIFFERENCE:
                            return reached[follower]
                        queue.append(follower)
        return None

    def plan(self) -> ReassignmentPlan:
        """Returns the differences from the layout."""
        moves = [
            PartitionMove(*key, partition.replicas, self.replicas[key], partition.leader, partition.size_bytes)
            for key, partition in self.partitions.items()
            if partition.replicas != self.replicas[key]
        ]
        sizes = [(key, partition.size_bytes) for key, partition in self.partitions.items()]
        before = loads(self.brokers, [(self.partitions[key].replicas, size) for key, size in sizes])
        after = loads(self.brokers, [(self.replicas[key], size) for key, size in sizes])
        return ReassignmentPlan(tuple(moves), before, after)


def _add_or_remove(keys: dict[TopicPartition, None], key: TopicPartition, sign: int) -> None:
    if sign > 0:
        keys[key] = None
    else:
        del keys[key]
