"""Consumer groups in a World: topics to read, heartbeats by hand, and clients that follow the responses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker.controller.changes import Change, TopicAdded, TopicRemoved, apply
from kbroker.controller.image import PartitionState, TopicImage
from kbroker.errors import Refusal
from kbroker.group.consumer.consumer_group import HeartbeatRequest
from kbroker.group.consumer.consumer_records import Assignment, as_assignment
from kbroker.group.consumer.consumer_state import ConsumerGroupState
from kbroker.group.consumer.topics import TopicSource
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.consumer_protocol import SUBSCRIPTION, TopicPartition
from kbroker.protocol.messages import consumer_group_heartbeat as messages
from tests.group.world import GROUP, Answer, World

ONE_PARTITION = PartitionState(1, 0, (1,), (1,), 0)


def set_topics(topics: TopicSource, counts: dict[str, int]) -> None:
    """These, and no others. One that gets more partitions stays what it is; with fewer, or after a time without it,
    it is another topic of the same name."""
    changes: list[Change] = []
    for name, topic in topics.image.topics.items():
        if counts.get(name) != len(topic.partitions):
            changes.append(TopicRemoved(topic))
    for name, count in counts.items():
        known = topics.image.topics.get(name)
        if known is None:
            changes.append(TopicAdded(TopicImage(name, topic_id(name, topics.version), (ONE_PARTITION,) * count)))
        elif len(known.partitions) != count:
            same = known.id if count > len(known.partitions) else topic_id(name, topics.version)
            changes.append(TopicAdded(TopicImage(name, same, (ONE_PARTITION,) * count)))
    topics.update(apply(topics.image, changes), is_changed=True)


def topic_id(name: str, version: int = 0) -> bytes:
    """`version`: of the metadata when it was created."""
    return f"{name}.{version}".encode().ljust(16, b".")


def subscription(topics: Iterable[str], owned: dict[str, list[int]] | None = None) -> bytes:
    """What a classic consumer says in its JoinGroup, v1."""
    parts = [TopicPartition(topic=name, partitions=partitions) for name, partitions in (owned or {}).items()]
    return b"\0\1" + codec(SUBSCRIPTION, 1).to_bytes(SUBSCRIPTION(topics=list(topics), owned_partitions=parts))


class ConsumerWorld(World):
    def __init__(self, counts: dict[str, int] | None = None, **config: Any) -> None:
        super().__init__(**config)
        set_topics(self.topics, {"topic": 4} if counts is None else counts)

    def beat(
        self,
        member_id: str,
        epoch: int,
        *,
        owned: Assignment | None = None,
        instance_id: str | None = None,
        topics: Iterable[str] | None = None,
        regex: str | None = None,
        assignor: str | None = None,
        rebalance_timeout_ms: int = -1,
        group_id: str = GROUP,
        may_see: Any = lambda name: True,
    ) -> Any:
        """The response, or the Refusal's code."""
        parts = None
        if owned is not None:
            parts = [
                messages.TopicPartitions(topic_id=topic_id, partitions=list(owned[topic_id])) for topic_id in owned
            ]
        body = messages.REQUEST(
            group_id=group_id,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=instance_id,
            rebalance_timeout_ms=rebalance_timeout_ms,
            subscribed_topic_names=None if topics is None else list(topics),
            subscribed_topic_regex=regex,
            server_assignor=assignor,
            topic_partitions=parts,
        )
        answer = Answer()
        try:
            result = self.shard.consumer_heartbeat(HeartbeatRequest(body, "client", "/host", answer, may_see), self.now)
        except Refusal as refusal:
            return refusal.code
        self.apply(result)
        self.last_result = result
        return answer.response

    def join_consumer(self, member_id: str, topics: Iterable[str] | None = ("topic",), **options: Any) -> Any:
        return self.beat(member_id, 0, topics=topics, owned={}, rebalance_timeout_ms=60_000, **options)

    @property
    def state(self) -> Any:
        consumers = self.consumers
        return super().state if consumers is None else consumers.status

    @property
    def consumers(self) -> ConsumerGroupState | None:
        return self.shard.describe_consumers(GROUP)


class Consumer:
    """A process that follows the protocol: holds what it was given, and lets go of the rest."""

    def __init__(self, world: ConsumerWorld, member_id: str, topics: Any = ("topic",), **options: Any) -> None:
        self.world = world
        self.member_id = member_id
        self.options = options
        self.owned: Assignment = {}
        self.epoch = 0
        self.topics = topics
        self._receive(world.join_consumer(member_id, topics, **options))

    def beat(self, **options: Any) -> Any:
        instance = {"instance_id": self.options["instance_id"]} if "instance_id" in self.options else {}
        return self._receive(self.world.beat(self.member_id, self.epoch, owned=self.owned, **instance, **options))

    def _receive(self, response: Any) -> Any:
        if not isinstance(response, int):
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.owned = as_assignment(response.assignment.topic_partitions)
        return response

    @property
    def partitions(self) -> list[int]:
        return sorted(index for indexes in self.owned.values() for index in indexes)


def settle(*members: Consumer, rounds: int = 6) -> None:
    for _ in range(rounds):
        for member in members:
            member.beat()
