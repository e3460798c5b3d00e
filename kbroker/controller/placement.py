"""Which brokers hold which partition: replicas spread evenly, as Kafka does where no racks are named.

The first replica of each partition is its preferred leader. Randomness comes in as two numbers.
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
    """Leaders go round the brokers from `start`; followers stand at a distance that grows by one with each round.

    The growing distance spreads the followers of one leader over all other brokers. Partitions added to a topic
    continue the rounds at `first_partition`, given the `start` that the topic began with.
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
