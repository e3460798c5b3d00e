"""Reads the tree into changes that make an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kbroker.controller.changes import Change, EntityConfigsChanged, TopicAdded
from kbroker.controller.config_entities import ENTITY_TYPES
from kbroker.controller.image import NO_LEADER, BrokerRegistration, PartitionState, TopicImage
from kbroker.controller.trees import znodes
from kbroker.controller.trees.tree import Create, Node, NodeExists, NoNode, Tree
from kbroker.names import RandomBytes, random_uuid, uuid_to_text

__all__ = [
    "LoadedTopics",
    "ensure_layout",
    "read_brokers",
    "read_cluster_id",
    "read_entity_configs",
    "read_named_topics",
    "read_topics",
]

_NO_TOPICS: Final[Mapping[str, TopicImage]] = {}


class LoadedTopics(NamedTuple):
    changes: list[Change]
    pending_deletions: list[str]
    """Topics whose deletion was not finished; they are not in `changes`."""
    topics_without_id: list[str]
    """Topics that a Kafka before 2.8 created. Loading gave them ids, which are not in the tree yet."""


async def ensure_layout(tree: Tree) -> None:
    """Creates the persistent nodes below which all others are created."""
    nodes = await tree.get_many(znodes.PERSISTENT_PATHS)
    missing = [path for path, node in zip(znodes.PERSISTENT_PATHS, nodes, strict=True) if node is None]
    try:
        await tree.multi([Create(path) for path in missing])
    except NodeExists:
        # Another broker creates them at the same time.
        await ensure_layout(tree)


async def read_cluster_id(tree: Tree, random_bytes: RandomBytes) -> str:
    """Returns the cluster's id. The first broker of a cluster generates it."""
    (node,) = await tree.get_many([znodes.CLUSTER_ID])
    if node is not None:
        return znodes.decode_cluster_id(node.data)
    cluster_id = uuid_to_text(random_uuid(random_bytes))
    try:
        await tree.create(znodes.CLUSTER_ID, znodes.encode_cluster_id(cluster_id))
    except NodeExists:
        return await read_cluster_id(tree, random_bytes)
    return cluster_id


async def read_entity_configs(tree: Tree) -> list[Change]:
    """Reads configs of brokers and groups, and quotas of users, clients and addresses; without empty ones."""
    entities: list[str] = []
    for kind in ENTITY_TYPES:
        entities += await _children_below(tree, kind)
    for user in [entity for entity in entities if entity.startswith("users/")]:
        entities += await _children_below(tree, f"{user}/clients")
    nodes = await tree.get_many([znodes.entity_config_path(entity) for entity in entities])
    changes: list[Change] = []
    for entity, node in zip(entities, nodes, strict=True):
        if node is not None and (configs := znodes.decode_configs(node.data)):
            changes.append(EntityConfigsChanged(entity, configs))
    return changes


async def _children_below(tree: Tree, entity: str) -> list[str]:
    try:
        return [f"{entity}/{name}" for name in await tree.children(znodes.entity_config_path(entity))]
    except NoNode:
        return []


async def read_brokers(tree: Tree, broker_ids: Sequence[int]) -> dict[int, BrokerRegistration]:
    """Returns the registered brokers among `broker_ids`, with their epochs."""
    nodes = await tree.get_many([znodes.broker_path(broker_id) for broker_id in broker_ids])
    return {
        broker_id: znodes.decode_broker(broker_id, node.data, epoch=node.stat.czxid)
        for broker_id, node in zip(broker_ids, nodes, strict=True)
        if node is not None
    }


async def read_topics(
    tree: Tree, random_bytes: RandomBytes, known: Mapping[str, TopicImage] = _NO_TOPICS
) -> LoadedTopics:
    """Reads all topics, in three batches of reads. `known`: as in `read_named_topics`."""
    deleted = await tree.children(znodes.DELETE_TOPICS)
    names = sorted(set(await tree.children(znodes.TOPICS)).difference(deleted))
    topics, without_id = await read_named_topics(tree, names, random_bytes, known)
    changes: list[Change] = [TopicAdded(topic) for topic in topics]
    return LoadedTopics(changes, deleted, without_id)


async def read_named_topics(
    tree: Tree, names: Sequence[str], random_bytes: RandomBytes, known: Mapping[str, TopicImage] = _NO_TOPICS
) -> tuple[list[TopicImage], list[str]]:
    """Returns the topics that exist, and the names of topics without an id in the tree.

    Such a topic has its id in `known`, because a tool of a Kafka before 2.8 wrote the node again, or gets a new id.
    """
    count = len(names)
    nodes = await tree.get_many(
        [*(znodes.topic_path(name) for name in names), *(znodes.topic_config_path(name) for name in names)]
    )
    assignments: dict[str, znodes.ReplicaAssignment] = {}
    configs: dict[str, dict[str, str]] = {}
    for name, topic_node, config_node in zip(names, nodes[:count], nodes[count:], strict=True):
        if topic_node is not None:
            assignments[name] = znodes.decode_topic(name, topic_node.data)
            configs[name] = {} if config_node is None else znodes.decode_configs(config_node.data)
    states = await _read_states(tree, assignments)
    without_id = [name for name, assignment in assignments.items() if assignment.topic_id is None]
    topics = [
        TopicImage(name, _topic_id(assignment, known.get(name), random_bytes), states[name], configs[name])
        for name, assignment in assignments.items()
    ]
    return topics, without_id


def _topic_id(assignment: znodes.ReplicaAssignment, known: TopicImage | None, random_bytes: RandomBytes) -> bytes:
    if assignment.topic_id is not None:
        return assignment.topic_id
    return random_uuid(random_bytes) if known is None else known.id


async def _read_states(
    tree: Tree, assignments: dict[str, znodes.ReplicaAssignment]
) -> dict[str, tuple[PartitionState, ...]]:
    paths = [
        znodes.state_path(name, index)
        for name, assignment in assignments.items()
        for index in sorted(assignment.replicas)
    ]
    nodes = iter(await tree.get_many(paths))
    # Most states are equal: sharing one value makes the start faster and the image smaller.
    known: dict[tuple[object, ...], PartitionState] = {}
    states: dict[str, tuple[PartitionState, ...]] = {}
    for name, assignment in assignments.items():
        partitions = []
        for index in sorted(assignment.replicas):
            node = next(nodes)
            replicas = assignment.replicas[index]
            adding, removing = assignment.adding.get(index, ()), assignment.removing.get(index, ())
            key = (node and (node.data, node.stat.version), replicas, adding, removing)
            if key not in known:
                known[key] = _partition(node, replicas, adding, removing)
            partitions.append(known[key])
        states[name] = tuple(partitions)
    return states


def _partition(
    node: Node | None, replicas: tuple[int, ...], adding: tuple[int, ...], removing: tuple[int, ...]
) -> PartitionState:
    if node is None:
        # The topic's creation was interrupted: the controller will elect a leader and create the node.
        return PartitionState(NO_LEADER, 0, (), replicas, partition_epoch=-1)
    return znodes.decode_state(node.data, node.stat.version, replicas=replicas, adding=adding, removing=removing)
