"""What can happen to the cluster, as values, and what an image becomes by them.

Listeners get these in the order in which they were committed. Nothing here knows where a change came from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kbroker.controller.image import Broker, Image, Partition, Topic
from kbroker.names import collision_key

__all__ = [
    "BrokerAdded",
    "BrokerRemoved",
    "Change",
    "ClusterIdSet",
    "ControllerChanged",
    "EntityConfigsChanged",
    "PartitionsChanged",
    "TopicAdded",
    "TopicConfigsChanged",
    "TopicRemoved",
    "apply",
]


@dataclass(frozen=True, slots=True)
class ClusterIdSet:
    cluster_id: str


@dataclass(frozen=True, slots=True)
class ControllerChanged:
    controller_id: int
    controller_epoch: int


@dataclass(frozen=True, slots=True)
class BrokerAdded:
    """A broker came, or came back: a known id with another epoch is one that bounced."""

    broker: Broker


@dataclass(frozen=True, slots=True)
class BrokerRemoved:
    broker_id: int


@dataclass(frozen=True, slots=True)
class TopicAdded:
    topic: Topic


@dataclass(frozen=True, slots=True)
class TopicRemoved:
    topic: Topic


@dataclass(frozen=True, slots=True)
class TopicConfigsChanged:
    topic_name: str
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EntityConfigsChanged:
    """Configs or quotas of what is no topic: a broker, all brokers, a group, a user; none are left if it is empty."""

    entity: str
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PartitionsChanged:
    """New states of partitions, by number; numbers past the last known one are partitions that were added."""

    topic_name: str
    partitions: Mapping[int, Partition]


Change = (
    ClusterIdSet
    | ControllerChanged
    | BrokerAdded
    | BrokerRemoved
    | TopicAdded
    | TopicRemoved
    | TopicConfigsChanged
    | EntityConfigsChanged
    | PartitionsChanged
)


def apply(image: Image, changes: Iterable[Change]) -> Image:
    """The image after the changes. The tables are copied once, however many changes there are."""
    draft = _Draft(image)
    for change in changes:
        match change:
            case ClusterIdSet(cluster_id):
                draft.cluster_id = cluster_id
            case ControllerChanged(controller_id, controller_epoch):
                draft.controller_id, draft.controller_epoch = controller_id, controller_epoch
            case BrokerAdded(broker):
                draft.brokers[broker.id] = broker
            case BrokerRemoved(broker_id):
                del draft.brokers[broker_id]
            case TopicAdded(topic):
                draft.add_topic(topic)
            case TopicRemoved(topic):
                draft.remove_topic(topic.name)
            case TopicConfigsChanged(topic_name, configs):
                draft.topics[topic_name] = replace(draft.topics[topic_name], configs=configs)
            case EntityConfigsChanged(entity, configs):
                draft.set_entity_configs(entity, configs)
            case PartitionsChanged(topic_name, partitions):
                draft.topics[topic_name] = _with_partitions(draft.topics[topic_name], partitions)
    return draft.finish()


class _Draft:
    """The tables of an image that does not exist yet."""

    __slots__ = (
        "brokers",
        "cluster_id",
        "controller_epoch",
        "controller_id",
        "entity_configs",
        "names_by_id",
        "names_by_key",
        "topics",
    )

    def __init__(self, image: Image) -> None:
        self.cluster_id = image.cluster_id
        self.controller_id = image.controller_id
        self.controller_epoch = image.controller_epoch
        self.brokers = dict(image.brokers)
        self.topics = dict(image.topics)
        self.names_by_id = dict(image.topic_names_by_id)
        self.names_by_key = dict(image.topic_names_by_collision_key)
        self.entity_configs = dict(image.entity_configs)

    def set_entity_configs(self, entity: str, configs: Mapping[str, str]) -> None:
        self.entity_configs.pop(entity, None)
        if configs:
            self.entity_configs[entity] = configs

    def add_topic(self, topic: Topic) -> None:
        assert topic.name not in self.topics, topic.name
        key = collision_key(topic.name)
        self.topics[topic.name] = topic
        self.names_by_id[topic.id] = topic.name
        self.names_by_key[key] = (*self.names_by_key.get(key, ()), topic.name)

    def remove_topic(self, name: str) -> None:
        topic = self.topics.pop(name)
        del self.names_by_id[topic.id]
        key = collision_key(name)
        # A tree that Apache Kafka once wrote may hold topics that collide.
        others = tuple(other for other in self.names_by_key[key] if other != name)
        if others:
            self.names_by_key[key] = others
        else:
            del self.names_by_key[key]

    def finish(self) -> Image:
        return Image(
            cluster_id=self.cluster_id,
            controller_id=self.controller_id,
            controller_epoch=self.controller_epoch,
            brokers=self.brokers,
            topics=self.topics,
            topic_names_by_id=self.names_by_id,
            topic_names_by_collision_key=self.names_by_key,
            entity_configs=self.entity_configs,
        )


def _with_partitions(topic: Topic, changed: Mapping[int, Partition]) -> Topic:
    partitions = list(topic.partitions)
    for index in sorted(changed):
        if index == len(partitions):
            partitions.append(changed[index])
        else:
            partitions[index] = changed[index]
    return replace(topic, partitions=tuple(partitions))
