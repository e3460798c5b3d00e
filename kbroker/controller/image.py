"""The cluster as one immutable value: brokers, topics with their partitions, configs, and the controller.

Lookups by name and by topic id cost one dict access. A change makes a new image (see changes.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from kbroker.config.endpoints import Endpoint
from kbroker.names import collision_key, is_internal_topic

__all__ = ["NO_LEADER", "BrokerRegistration", "Image", "PartitionState", "TopicImage", "without_leader"]

NO_LEADER: Final = -1

_NO_CONFIGS: Final[Mapping[str, str]] = MappingProxyType({})


class PartitionState(NamedTuple):
    leader: int
    """Broker id, or NO_LEADER."""
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    partition_epoch: int
    """Version of the state's node. A write of leader or ISR succeeds only if it names the current version."""
    controller_epoch: int = 0
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()
    """Live brokers whose replica is in a failed data directory. Not in the tree: the brokers report it."""


def without_leader(partition: PartitionState) -> PartitionState:
    """Returns the state without its leader, and older than any state that the controller may send."""
    return partition._replace(leader=NO_LEADER, partition_epoch=-1)


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    id: bytes
    partitions: tuple[PartitionState, ...]
    """Ordered by partition number."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """The topic's config overrides."""

    @property
    def is_internal(self) -> bool:
        return is_internal_topic(self.name)

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas) if self.partitions else 0


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    id: int
    epoch: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None

    def endpoint(self, listener_name: str) -> Endpoint | None:
        for endpoint in self.endpoints:
            if endpoint.name == listener_name:
                return endpoint
        return None


@dataclass(frozen=True, slots=True)
class Image:
    cluster_id: str = ""
    controller_id: int = NO_LEADER
    controller_epoch: int = 0
    brokers: Mapping[int, BrokerRegistration] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names_by_id: Mapping[bytes, str] = field(default_factory=dict)
    topic_names_by_collision_key: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    entity_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Configs and quotas of entities other than topics, by path below /config: brokers/1, users/alice/clients/app."""

    def topic(self, name: str) -> TopicImage | None:
        return self.topics.get(name)

    def configs_of(self, entity: str) -> Mapping[str, str]:
        return self.entity_configs.get(entity, _NO_CONFIGS)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        name = self.topic_names_by_id.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic_name: str, index: int) -> PartitionState | None:
        topic = self.topics.get(topic_name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def colliding_topic(self, name: str) -> str | None:
        """Returns another topic whose name differs from `name` only in dots and underscores, or None."""
        for other in self.topic_names_by_collision_key.get(collision_key(name), ()):
            if other != name:
                return other
        return None
