"""Index of the partitions that this broker has a replica of, by topic name and partition number.

Never opens a partition nor gives it a role: `AssignedReplicas` does.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.controller.image import TopicImage
from kbroker.replication.partition import Partition

__all__ = ["PartitionTable"]


class PartitionTable:
    def __init__(self) -> None:
        self._leaders: dict[str, list[Partition | None]] = {}
        """Topic to its partitions by number; None if this broker does not lead. Has all topics of the image."""
        self.followers: dict[tuple[str, int], Partition] = {}
        """Partitions that this broker does not lead: followers, and partitions without a role yet."""
        self._names_by_id: dict[bytes, str] = {}

    def __iter__(self) -> Iterator[Partition]:
        """Iterates over all partitions, leaders and followers."""
        for partitions in self._leaders.values():
            for partition in partitions:
                if partition is not None:
                    yield partition
        yield from self.followers.values()

    def get(self, topic: str, index: int) -> Partition | None:
        """Returns the partition if this broker leads it, else None. Hot path."""
        partitions = self._leaders.get(topic)
        if partitions is None or not 0 <= index < len(partitions):
            return None
        return partitions[index]

    def replica(self, topic: str, index: int) -> Partition | None:
        """Returns the partition in any role, or None if this broker has no replica of it."""
        return self.get(topic, index) or self.followers.get((topic, index))

    def follower(self, topic: str, index: int) -> Partition | None:
        """Returns the partition if this broker follows it, else None: also if it has no role yet."""
        partition = self.followers.get((topic, index))
        return None if partition is None or partition.leader_epoch < 0 else partition

    def topic_name(self, topic_id: bytes) -> str | None:
        return self._names_by_id.get(topic_id)

    def replicas_of(self, topic: str) -> list[Partition]:
        found = (self.replica(topic, index) for index in range(len(self._leaders.get(topic, ()))))
        return [partition for partition in found if partition is not None]

    # Changes

    def add_topic(self, topic: TopicImage) -> None:
        """Adds a topic, or its new partitions. Needed before its partitions are set."""
        leaders = self._leaders.setdefault(topic.name, [])
        leaders += [None] * (len(topic.partitions) - len(leaders))
        self._names_by_id[topic.id] = topic.name

    def remove_topic(self, topic: TopicImage) -> list[Partition]:
        """Removes a topic and returns the partitions of it that this broker had."""
        self._names_by_id.pop(topic.id, None)
        removed = [
            *self._leaders.pop(topic.name, []),
            *(self.followers.pop((topic.name, index), None) for index in range(len(topic.partitions))),
        ]
        return [partition for partition in removed if partition is not None]

    def set_leader(self, partition: Partition) -> None:
        self._leaders[partition.topic][partition.index] = partition
        self.followers.pop((partition.topic, partition.index), None)

    def set_follower(self, partition: Partition) -> None:
        """Hides the partition from `get`: clients get NOT_LEADER_OR_FOLLOWER, unless they may read from followers."""
        self._leaders[partition.topic][partition.index] = None
        self.followers[partition.topic, partition.index] = partition

    def remove(self, partition: Partition) -> None:
        self._leaders[partition.topic][partition.index] = None
        self.followers.pop((partition.topic, partition.index), None)
