"""Nodes of topics and partitions as operations on the tree, and how they are cut into multis. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from kbroker.controller import znodes
from kbroker.controller.image import Partition, Topic
from kbroker.controller.tree import MAX_NODE_SIZE, Create, Operation, SetData, size_of

__all__ = ["announcement", "in_groups", "in_parts", "partition_nodes", "state_writes", "topic_nodes"]

T = TypeVar("T")

# A multi travels as one packet; the check that goes along needs its share.
_MULTI_BYTES: Final = MAX_NODE_SIZE - 1000


def announcement(entity: str) -> Create:
    """Tells every broker to read the configs of the entity again."""
    return Create(znodes.CONFIG_CHANGE_PREFIX, znodes.encode_config_change(entity), sequential=True)


def topic_nodes(topic: Topic) -> list[Operation]:
    return [
        # The configs first: whoever sees the topic shall find them.
        Create(znodes.topic_config_path(topic.name), znodes.encode_configs(topic.configs)),
        Create(znodes.topic_path(topic.name), znodes.encode_topic(topic.id, topic.partitions)),
        Create(znodes.partitions_path(topic.name)),
        *partition_nodes(topic.name, dict(enumerate(topic.partitions))),
    ]


def partition_nodes(name: str, partitions: Mapping[int, Partition]) -> list[Create]:
    operations = []
    for index, partition in partitions.items():
        operations.append(Create(znodes.partition_path(name, index)))
        operations.append(Create(znodes.state_path(name, index), znodes.encode_state(partition)))
    return operations


def state_writes(changed: Mapping[str, Mapping[int, Partition]]) -> list[Operation]:
    """States in the place of those before them: each write expects the version that it was decided upon."""
    return [
        SetData(znodes.state_path(name, index), znodes.encode_state(state), state.partition_epoch - 1)
        for name, partitions in changed.items()
        for index, state in partitions.items()
    ]


def in_groups(topics: Sequence[Topic]) -> Iterable[list[Topic]]:
    """Topics that fit into one multi; one that does not fit at all is a group of its own."""
    return _packed(topics, lambda topic: sum(map(size_of, topic_nodes(topic))))


def in_parts(operations: Sequence[Operation]) -> Iterable[list[Operation]]:
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
