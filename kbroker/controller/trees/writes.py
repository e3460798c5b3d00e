"""Builds the tree operations for topics and partitions, and packs operations into multis. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from kbroker.controller.image import PartitionState, TopicImage
from kbroker.controller.trees import znodes
from kbroker.controller.trees.tree import MAX_NODE_SIZE, Create, SetData, TreeOperation, size_of

__all__ = ["announcement", "in_groups", "in_parts", "partition_nodes", "state_writes", "topic_nodes"]

T = TypeVar("T")

# A multi is sent as one packet. The rest is for the check of the controller epoch.
_MULTI_BYTES: Final = MAX_NODE_SIZE - 1000


def announcement(entity: str) -> Create:
    """Returns the operation that makes every broker read the configs of the entity again."""
    return Create(znodes.CONFIG_CHANGE_PREFIX, znodes.encode_config_change(entity), sequential=True)


def topic_nodes(topic: TopicImage) -> list[TreeOperation]:
    return [
        # Configs first: a broker that sees the topic must find its configs.
        Create(znodes.topic_config_path(topic.name), znodes.encode_configs(topic.configs)),
        Create(znodes.topic_path(topic.name), znodes.encode_topic(topic.id, topic.partitions)),
        Create(znodes.partitions_path(topic.name)),
        *partition_nodes(topic.name, dict(enumerate(topic.partitions))),
    ]


def partition_nodes(name: str, partitions: Mapping[int, PartitionState]) -> list[Create]:
    operations = []
    for index, partition in partitions.items():
        operations.append(Create(znodes.partition_path(name, index)))
        operations.append(Create(znodes.state_path(name, index), znodes.encode_state(partition)))
    return operations


def state_writes(changed: Mapping[str, Mapping[int, PartitionState]]) -> list[TreeOperation]:
    """Returns the writes of new states. Each expects the version of the state from which it was computed."""
    return [
        SetData(znodes.state_path(name, index), znodes.encode_state(state), state.partition_epoch - 1)
        for name, partitions in changed.items()
        for index, state in partitions.items()
    ]


def in_groups(topics: Sequence[TopicImage]) -> Iterable[list[TopicImage]]:
    """Groups topics that fit into one multi. A topic that is too large for one is a group by itself."""
    return _packed(topics, lambda topic: sum(map(size_of, topic_nodes(topic))))


def in_parts(operations: Sequence[TreeOperation]) -> Iterable[list[TreeOperation]]:
    return _packed(operations, size_of)


def _packed(items: Iterable[T], size_of_item: Callable[[T], int]) -> Iterable[list[T]]:
    pack: list[T] = []
    size = 0
    for item in items:
        own = size_of_item(item)
        if pack and size + own > _MULTI_BYTES:
            yield pack
            pack, size = [], 0
        pack.append(item)
        size += own
    if pack:
        yield pack
