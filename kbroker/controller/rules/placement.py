"""Assigns replicas to brokers evenly, as Kafka does without racks. Pure: randomness is passed in as two numbers.

The first replica of each partition is its preferred leader.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["place_replicas"]


def place_replicas(
    broker_ids: Sequence[int],
    *,
    partitions: int,
    replication_factor: int,
    start: int,
    shift: int,
    first_partition: int = 0,
) -> list[tuple[int, ...]]:
    """Returns the replicas of each partition.

    Leaders are assigned round robin from `start`. The distance from leader to follower grows by one with each round,
    which spreads the followers of one leader over all other brokers. For partitions that are added to a topic, pass the
    topic's `start` and continue at `first_partition`.
    """
    brokers = sorted(broker_ids)
    count = len(brokers)
    assert 0 < replication_factor <= count
    placed = []
    for partition in range(first_partition, first_partition + partitions):
        leader = (start + partition) % count
        distance = shift + partition // count
        followers = [
            brokers[(leader + 1 + (distance + follower) % (count - 1)) % count]
            for follower in range(replication_factor - 1)
        ]
        placed.append((brokers[leader], *followers))
    return placed
