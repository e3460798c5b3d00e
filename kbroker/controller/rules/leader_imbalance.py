"""Finds partitions whose leadership should go back to the preferred replica, as Kafka counts them. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable

from kbroker.controller.image import TopicImage

__all__ = ["imbalanced_partitions"]


def imbalanced_partitions(
    topics: Iterable[TopicImage], eligible: Container[int], share: float
) -> list[tuple[str, int]]:
    """Returns partitions that should be led by their preferred replica again.

    A broker's partitions are included if more than `share` of the partitions that prefer it have another leader, and
    only where the broker is eligible and in sync.
    """
    preferred_counts: dict[int, int] = {}
    elsewhere: dict[int, list[tuple[str, int]]] = {}
    movable: set[tuple[str, int]] = set()
    for topic in topics:
        for index, partition in enumerate(topic.partitions):
            preferred = partition.replicas[0]
            preferred_counts[preferred] = preferred_counts.get(preferred, 0) + 1
            if partition.leader != preferred:
                elsewhere.setdefault(preferred, []).append((topic.name, index))
                if preferred in eligible and preferred in partition.isr:
                    movable.add((topic.name, index))
    return [
        partition_key
        for broker_id, partitions in elsewhere.items()
        if len(partitions) > share * preferred_counts[broker_id]
        for partition_key in partitions
        if partition_key in movable
    ]
