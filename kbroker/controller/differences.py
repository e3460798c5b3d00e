"""Differences between two images, as changes: for a broker that has read the whole tree again. Pure."""

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
from kbroker.controller.image import Image, TopicImage

__all__ = ["differences", "topic_differences"]


def differences(before: Image, after: Image) -> list[Change]:
    changes: list[Change] = []
    if before.cluster_id != after.cluster_id:
        changes.append(ClusterIdSet(after.cluster_id))
    changes += _broker_differences(before, after)
    for entity in dict.fromkeys([*before.entity_configs, *after.entity_configs]):
        if before.configs_of(entity) != after.configs_of(entity):
            changes.append(EntityConfigsChanged(entity, after.configs_of(entity)))
    changes += [TopicRemoved(topic) for name, topic in before.topics.items() if name not in after.topics]
    for name, topic in after.topics.items():
        changes += topic_differences(before.topics.get(name), topic)
    if (before.controller_id, before.controller_epoch) != (after.controller_id, after.controller_epoch):
        changes.append(ControllerChanged(after.controller_id, after.controller_epoch))
    return changes


def _broker_differences(before: Image, after: Image) -> list[Change]:
    changes: list[Change] = [BrokerRemoved(broker_id) for broker_id in before.brokers if broker_id not in after.brokers]
    changed = [broker for broker in after.brokers.values() if before.brokers.get(broker.id) != broker]
    return changes + [BrokerAdded(broker) for broker in changed]


def topic_differences(before: TopicImage | None, after: TopicImage) -> list[Change]:
    """Returns the changes of one topic.

    A topic with the same name, but another id or fewer partitions, was deleted and created again.
    """
    if before is None:
        return [TopicAdded(after)]
    if before.id != after.id or len(before.partitions) > len(after.partitions):
        return [TopicRemoved(before), TopicAdded(after)]
    changes: list[Change] = []
    known = dict(enumerate(before.partitions))
    changed = {index: state for index, state in enumerate(after.partitions) if known.get(index) != state}
    if changed:
        changes.append(PartitionsChanged(after.name, changed))
    if before.configs != after.configs:
        changes.append(TopicConfigsChanged(after.name, after.configs))
    return changes
