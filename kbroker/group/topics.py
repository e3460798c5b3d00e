"""The topics that there are, as groups see them: one for all shards of a broker, kept up by the coordinator."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from kbroker.controller.image import Image
from kbroker.group.consumer_records import Assignment

__all__ = ["Topics"]


class Topics:
    __slots__ = ("image", "version")

    def __init__(self, image: Image | None = None) -> None:
        self.image = Image() if image is None else image
        self.version = 0
        """Grows whenever topics come, go or get partitions: groups look again if it is not what they saw last."""

    def update(self, image: Image, *, is_changed: bool) -> None:
        self.image = image
        if is_changed:
            self.version += 1

    def metadata_hash(self, names: Iterable[str]) -> int:
        """Changes if one of these topics does; as a signed number of 64 bits, 0 if none of them exists."""
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
        found = ((each, self.image.topic_by_id(each)) for each in topic_ids)
        return {each: len(topic.partitions) for each, topic in found if topic is not None}

    def by_name(self, assignment: Assignment) -> dict[str, list[int]]:
        """Without the topics that are gone."""
        names = self.image.topic_names_by_id
        return {names[each]: sorted(partitions) for each, partitions in assignment.items() if each in names}

    def by_id(self, partitions: Iterable[tuple[str, Iterable[int]]]) -> Assignment:
        """Without topics and partitions that do not exist."""
        topics = self.image.topics
        found: dict[bytes, frozenset[int]] = {}
        for name, indexes in partitions:
            if name in topics:
                topic = topics[name]
                known = frozenset(each for each in indexes if 0 <= each < len(topic.partitions))
                if known:
                    found[topic.id] = found.get(topic.id, frozenset()) | known
        return found
