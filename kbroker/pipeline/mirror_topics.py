"""Topics of a mirror: creates them in the target, and follows partition counts and configs of the source.

Deletes no topic and no partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from kbroker.client.cluster import Cluster
from kbroker.client.configs import ConfigChange, alter_configs, describe_configs
from kbroker.client.failures import BrokerRefusal
from kbroker.client.topics import create_partitions, create_topic
from kbroker.config.key import ConfigSource
from kbroker.config.resources import ConfigOperation, ConfigResourceType
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["NOT_COPIED", "TopicChange", "follow_topics", "plan_changes"]

NOT_COPIED: Final = frozenset(
    {
        # They depend on the brokers of a cluster.
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "min.insync.replicas",
        "unclean.leader.election.enable",
        # The target must keep the timestamps of the source, however old they are.
        "message.timestamp.type",
        "message.timestamp.difference.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.after.max.ms",
    }
)
"""Topic configs that stay as they are in the target, as in MirrorMaker 2."""

Configs = Mapping[str, str]


class TopicChange(NamedTuple):
    """Change that makes a topic of the target like the topic of the source."""

    topic: str
    create: int | None = None
    """Partitions of a new topic."""
    grow: int | None = None
    """New number of partitions of an existing topic."""
    set_configs: Configs = MappingProxyType({})
    delete_configs: tuple[str, ...] = ()


def plan_changes(
    source: Mapping[str, tuple[int, Configs | None]], target: Mapping[str, tuple[int, Configs | None]]
) -> list[TopicChange]:
    """Compares topics: name -> partitions, and the configs that were set for the topic (None: leave them alone)."""
    changes = []
    for name, (partitions, configs) in sorted(source.items()):
        wanted = {key: value for key, value in (configs or {}).items() if key not in NOT_COPIED}
        if name not in target:
            changes.append(TopicChange(name, create=partitions, set_configs=wanted))
            continue
        present, known = target[name]
        grow = partitions if partitions > present else None
        to_set: dict[str, str] = {}
        to_delete: tuple[str, ...] = ()
        if configs is not None and known is not None:
            to_set = {key: value for key, value in wanted.items() if known.get(key) != value}
            to_delete = tuple(sorted(known.keys() - wanted.keys() - NOT_COPIED))
        if grow or to_set or to_delete:
            changes.append(TopicChange(name, grow=grow, set_configs=to_set, delete_configs=to_delete))
    return changes


async def follow_topics(
    source: Cluster,
    target: Cluster,
    includes: Callable[[str], bool],
    *,
    with_configs: bool,
    replication_factor: int,
) -> list[TopicChange]:
    """Makes the topics of the target like those of the source; returns what was changed."""
    wanted = {topic.name: len(topic.partitions) for topic in await source.topics() if includes(topic.name)}
    present = {topic.name: len(topic.partitions) for topic in await target.topics() if topic.name in wanted}
    needs_configs = {name for name in wanted if with_configs or name not in present}
    changes = plan_changes(
        {
            name: (count, await _set_configs(source, name) if name in needs_configs else None)
            for name, count in wanted.items()
        },
        {name: (count, await _set_configs(target, name) if with_configs else None) for name, count in present.items()},
    )
    for change in changes:
        await _apply(target, change, replication_factor)
    return changes


async def _set_configs(cluster: Cluster, topic: str) -> dict[str, str]:
    """Returns the configs that were set for the topic itself."""
    return {
        config.name: config.value
        for config in await describe_configs(cluster, ConfigResourceType.TOPIC, topic)
        if config.source == ConfigSource.DYNAMIC_TOPIC_CONFIG and config.value is not None
    }


async def _apply(target: Cluster, change: TopicChange, replication_factor: int) -> None:
    if change.create is not None:
        try:
            await create_topic(
                target,
                change.topic,
                partitions=change.create,
                replication_factor=replication_factor,
                configs=change.set_configs,
            )
        except BrokerRefusal as refusal:
            if refusal.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # Another mirror created it: the next look compares.
                raise
        return
    if change.grow is not None:
        await create_partitions(target, change.topic, change.grow)
    changes = [ConfigChange(ConfigOperation.SET, name, value) for name, value in change.set_configs.items()]
    changes += [ConfigChange(ConfigOperation.DELETE, name) for name in change.delete_configs]
    if changes:
        await alter_configs(target, ConfigResourceType.TOPIC, change.topic, changes)
