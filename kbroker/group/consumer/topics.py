"""The topics of the cluster for consumer groups: one object for all shards of a broker, updated by the coordinator."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from kbroker.controller.image import Image
from kbroker.group.consumer.consumer_records import Assignment

__all__ = ["TopicSource"]


class TopicSource:
    __slots__ = ("image", "version")

    def __init__(self, image: Image | None = None) -> None:
        self.image = Image() if image is None else image
        self.version = 0
        """Increases when a topic is created, deleted or gets partitions. Groups compare it with the last they saw."""

    def update(self, image: Image, *, is_changed: bool) -> None:
        self.image = image
        if is_changed:
            self.version += 1

    def metadata_hash(self, names: Iterable[str]) -> int:
        """Returns a hash of ids and partition counts, as a signed 64-bit number; 0 if none of the topics exists."""
        topics = self.image.topics
        known = [topics[name] for name in sorted(names) if name in topics]
        if not known:
            return 0
        digest = blake2b(digest_size=8)
        for topic in known:
            digest.update(topic.id)
            digest.update(b"%d %s\n" % (len(topic.partitions), topic.name.encode()))
        return int.from_bytes(digest.digest(), "big", signed=True)

    def ids(self, names: Iterable[str]) -> frozenset[bytes]:
        topics = self.image.topics
        return frozenset(topics[name].id for name in names if name in topics)

    def partition_counts(self, topic_ids: Iterable[bytes]) -> dict[bytes, int]:
        found = ((topic_id, self.image.topic_by_id(topic_id)) for topic_id in topic_ids)
        return {topic_id: len(topic.partitions) for topic_id, topic in found if topic is not None}

    def by_name(self, assignment: Assignment) -> dict[str, list[int]]:
        """Returns an assignment by topic name, without deleted topics."""
        names = self.image.topic_names_by_id
        return {names[topic_id]: sorted(indexes) for topic_id, indexes in assignment.items() if topic_id in names}

    def by_id(self, partitions: Iterable[tuple[str, Iterable[int]]]) -> Assignment:
        """Returns an assignment by topic id, without topics and partitions that do not exist."""
        topics = self.image.topics
        found: dict[bytes, frozenset[int]] = {}
        for name, indexes in partitions:
            if name in topics:
                topic = topics[name]
                known = frozenset(index for index in indexes if 0 <= index < len(topic.partitions))
                if known:
                    found[topic.id] = found.get(topic.id, frozenset()) | known
        return found
