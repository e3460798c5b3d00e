"""The cluster as one immutable value: brokers, topics with their partitions, configs, and who the controller is.

Lookups by name and by topic id cost one dict access. A change makes a new image (see changes.py); nobody edits one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from kbroker.config import Endpoint
from kbroker.names import collision_key, is_internal_topic

__all__ = ["NO_LEADER", "Broker", "Image", "Partition", "Topic", "unled"]

NO_LEADER: Final = -1

_NO_CONFIGS: Final[Mapping[str, str]] = MappingProxyType({})


class Partition(NamedTuple):
    leader: int
    """A broker's id, or NO_LEADER."""
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    partition_epoch: int
    """The version of the state's node: what a change of leader or ISR is compared with."""
    controller_epoch: int = 0
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()


def unled(partition: Partition) -> Partition:
    """The partition as a broker knows it before the controller has told it who leads: any state is news then."""
    return partition._replace(leader=NO_LEADER, partition_epoch=-1)


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    id: bytes
    partitions: tuple[Partition, ...]
    """In order: a partition's place is its number."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """The topic's own overrides."""

    @property
    def is_internal(self) -> bool:
        return is_internal_topic(self.name)

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas) if self.partitions else 0


@dataclass(frozen=True, slots=True)
class Broker:
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
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)
    topic_names_by_id: Mapping[bytes, str] = field(default_factory=dict)
    topic_names_by_collision_key: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    entity_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Configs and quotas of what is no topic, by the path below /config: brokers/1, users/alice/clients/app."""

    def topic(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def configs_of(self, entity: str) -> Mapping[str, str]:
        return self.entity_configs.get(entity, _NO_CONFIGS)

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        name = self.topic_names_by_id.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic_name: str, index: int) -> Partition | None:
        topic = self.topics.get(topic_name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def colliding_topic(self, name: str) -> str | None:
        """Another topic whose name differs from this one only in dots and underscores."""
        for other in self.topic_names_by_collision_key.get(collision_key(name), ()):
            if other != name:
                return other
        return None
