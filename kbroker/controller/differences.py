"""What makes one image out of another, as changes: for a broker that has read the tree anew. Pure."""

from __future__ import annotations

from kbroker.controller.changes import (
    BrokerAdded,
    BrokerRemoved,
    Change,
    ClusterIdSet,
    ControllerChanged,
    EntityConfigsChanged,
    PartitionsChanged,
    TopicAdded,
    TopicConfigsChanged,
    TopicRemoved,
)
from kbroker.controller.image import Image, Topic

__all__ = ["differences", "topic_differences"]


def differences(before: Image, after: Image) -> list[Change]:
    changes: list[Change] = []
    if before.cluster_id != after.cluster_id:
        changes.append(ClusterIdSet(after.cluster_id))
    changes += _of_brokers(before, after)
    for entity in dict.fromkeys([*before.entity_configs, *after.entity_configs]):
        if before.configs_of(entity) != after.configs_of(entity):
            changes.append(EntityConfigsChanged(entity, after.configs_of(entity)))
    changes += [TopicRemoved(topic) for name, topic in before.topics.items() if name not in after.topics]
    for name, topic in after.topics.items():
        changes += topic_differences(before.topics.get(name), topic)
    if (before.controller_id, before.controller_epoch) != (after.controller_id, after.controller_epoch):
        changes.append(ControllerChanged(after.controller_id, after.controller_epoch))
    return changes


def _of_brokers(before: Image, after: Image) -> list[Change]:
    changes: list[Change] = [BrokerRemoved(each) for each in before.brokers if each not in after.brokers]
    return changes + [BrokerAdded(each) for each in after.brokers.values() if before.brokers.get(each.id) != each]


def topic_differences(before: Topic | None, after: Topic) -> list[Change]:
    """A topic of the same name with another id, or with fewer partitions, is another topic."""
    if before is None:
        return [TopicAdded(after)]
    if before.id != after.id or len(before.partitions) > len(after.partitions):
        return [TopicRemoved(before), TopicAdded(after)]
    changes: list[Change] = []
    known = dict(enumerate(before.partitions))
    changed = {index: each for index, each in enumerate(after.partitions) if known.get(index) != each}
    if changed:
        changes.append(PartitionsChanged(after.name, changed))
    if before.configs != after.configs:
        changes.append(TopicConfigsChanged(after.name, after.configs))
    return changes
