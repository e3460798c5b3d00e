"""Which leaderships should go back to their preferred replicas, as Kafka counts it. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable

from kbroker.controller.image import Topic

__all__ = ["imbalanced"]


def imbalanced(topics: Iterable[Topic], ready: Container[int], share: float) -> list[tuple[str, int]]:
    """Partitions of brokers that lead too little of what they are meant to lead: more than `share` of it is elsewhere.

    Only what can be led there now: the broker is ready and in sync.
    """
    meant: dict[int, int] = {}
    elsewhere: dict[int, list[tuple[str, int]]] = {}
    movable: set[tuple[str, int]] = set()
    for topic in topics:
        for index, partition in enumerate(topic.partitions):
            preferred = partition.replicas[0]
            meant[preferred] = meant.get(preferred, 0) + 1
            if partition.leader != preferred:
                elsewhere.setdefault(preferred, []).append((topic.name, index))
                if preferred in ready and preferred in partition.isr:
                    movable.add((topic.name, index))
    return [
        each
        for broker_id, partitions in elsewhere.items()
        if len(partitions) > share * meant[broker_id]
        for each in partitions
        if each in movable
    ]
