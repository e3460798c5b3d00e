"""Assigns replicas to brokers evenly, as Kafka does. Pure: randomness is passed in as two numbers.

The first replica of each partition is its preferred leader. If every broker has a rack, the replicas of a partition are
in as many racks as possible (KIP-36).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["place_replicas"]


def place_replicas(
    racks: Mapping[int, str | None],
    *,
    partitions: int,
    replication_factor: int,
    start: int,
    shift: int,
    first_partition: int = 0,
) -> list[tuple[int, ...]]:
    """Returns the replicas of each partition. `racks`: the rack of each broker; ignored if a broker has none.

    Leaders are assigned round robin from `start`. The distance from leader to follower grows with each round, which
    spreads the followers of one leader over all other brokers. For partitions that are added to a topic, pass the
    topic's `start` and continue at `first_partition`.
    """
    known = {broker_id: rack for broker_id, rack in sorted(racks.items()) if rack is not None}
    if len(known) < len(racks):
        known = {}
    brokers = _alternated(known) if known else sorted(racks)
    stride = len(set(known.values())) if known else 1
    count = len(brokers)
    assert 0 < replication_factor <= count
    placed = []
    for partition in range(first_partition, first_partition + partitions):
        leader = (start + partition) % count
        distance = (shift + partition // count) * stride
        candidates = range(count - 1 if known else replication_factor - 1)
        others = [brokers[(leader + 1 + (distance + place) % (count - 1)) % count] for place in candidates]
        followers = _in_different_racks(brokers[leader], others, known) if known else others
        placed.append((brokers[leader], *followers[: replication_factor - 1]))
    return placed


def _alternated(racks: Mapping[int, str]) -> list[int]:
    """Returns the brokers so that neighbours are in different racks: the first one of each rack, then the second."""
    by_rack: dict[str, list[int]] = {}
    for broker_id, rack in racks.items():
        by_rack.setdefault(rack, []).append(broker_id)
    ordered = [by_rack[rack] for rack in sorted(by_rack)]
    longest = max(map(len, ordered))
    return [brokers[place] for place in range(longest) for brokers in ordered if place < len(brokers)]


def _in_different_racks(leader: int, others: Sequence[int], racks: Mapping[int, str]) -> list[int]:
    """Returns the followers in the order in which they are used: a rack is used twice only if all racks are used.

    Kafka goes round and round through the brokers, and takes each that fits.
    """
    left = list(others)
    used = {racks[leader]}
    all_racks = set(racks.values())
    followers: list[int] = []
    while left:
        for broker_id in list(left):
            if racks[broker_id] not in used or used == all_racks:
                left.remove(broker_id)
                followers.append(broker_id)
                used.add(racks[broker_id])
    return followers
