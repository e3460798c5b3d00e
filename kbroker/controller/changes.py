"""Changes of the cluster, as values, and their application to an image. Pure.

Listeners get the changes in the order in which they were committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kbroker.controller.image import BrokerRegistration, Image, PartitionState, TopicImage
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
    """A broker registered. A known id with another epoch is a broker that restarted."""

    broker: BrokerRegistration


@dataclass(frozen=True, slots=True)
class BrokerRemoved:
    broker_id: int


@dataclass(frozen=True, slots=True)
class TopicAdded:
    topic: TopicImage


@dataclass(frozen=True, slots=True)
class TopicRemoved:
    topic: TopicImage


@dataclass(frozen=True, slots=True)
class TopicConfigsChanged:
    topic_name: str
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EntityConfigsChanged:
    """New configs or quotas of an entity that is not a topic: a broker, all brokers, a group, a user. May be empty."""

    entity: str
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PartitionsChanged:
    """New states of partitions, by number. Numbers above the last known partition are new partitions."""

    topic_name: str
    partitions: Mapping[int, PartitionState]


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
    """Returns the image after the changes. Its tables are copied once, however many changes there are."""
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
    """Mutable tables of a new image."""

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

    def add_topic(self, topic: TopicImage) -> None:
        assert topic.name not in self.topics, topic.name
        key = collision_key(topic.name)
        self.topics[topic.name] = topic
        self.names_by_id[topic.id] = topic.name
        self.names_by_key[key] = (*self.names_by_key.get(key, ()), topic.name)

    def remove_topic(self, name: str) -> None:
        topic = self.topics.pop(name)
        del self.names_by_id[topic.id]
        key = collision_key(name)
        # A tree written by Apache Kafka may contain topics with colliding names.
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


def _with_partitions(topic: TopicImage, changed: Mapping[int, PartitionState]) -> TopicImage:
    partitions = list(topic.partitions)
    for index in sorted(changed):
        if index == len(partitions):
            partitions.append(changed[index])
        else:
            partitions[index] = changed[index]
    return replace(topic, partitions=tuple(partitions))
