"""Reads the tree into changes that make an image."""

from __future__ import annotations

import logging
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

logger = logging.getLogger(__name__)

_NO_TOPICS: Final[Mapping[str, TopicImage]] = {}


class LoadedTopics(NamedTuple):
    changes: list[Change]
    pending_deletions: list[str]
    """Topics that are marked for deletion. They are in `changes` only if topics cannot be deleted."""
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
        try:
            if node is not None and (configs := znodes.decode_configs(node.data)):
                changes.append(EntityConfigsChanged(entity, configs))
        except znodes.BadNode as failure:
            logger.error("Ignored %s: %s", znodes.entity_config_path(entity), failure)
    return changes


async def _children_below(tree: Tree, entity: str) -> list[str]:
    try:
        return [f"{entity}/{name}" for name in await tree.children(znodes.entity_config_path(entity))]
    except NoNode:
        return []


async def read_brokers(tree: Tree, broker_ids: Sequence[int]) -> dict[int, BrokerRegistration]:
    """Returns the registered brokers among `broker_ids`, with their epochs. A damaged registration is logged."""
    nodes = await tree.get_many([znodes.broker_path(broker_id) for broker_id in broker_ids])
    brokers: dict[int, BrokerRegistration] = {}
    for broker_id, node in zip(broker_ids, nodes, strict=True):
        if node is None:
            continue
        try:
            brokers[broker_id] = znodes.decode_broker(broker_id, node.data, epoch=node.stat.czxid)
        except znodes.BadNode as failure:
            logger.error("Ignored broker %d: %s", broker_id, failure)
    return brokers


async def read_topics(
    tree: Tree,
    random_bytes: RandomBytes,
    known: Mapping[str, TopicImage] = _NO_TOPICS,
    *,
    may_delete: bool = True,
    is_strict: bool = False,
) -> LoadedTopics:
    """Reads all topics, in three batches of reads. `known` and `is_strict`: as in `read_named_topics`.

    With `may_delete`, topics that are marked for deletion count as deleted.
    """
    deleted = await tree.children(znodes.DELETE_TOPICS)
    names = sorted(set(await tree.children(znodes.TOPICS)).difference(deleted if may_delete else ()))
    topics, without_id = await read_named_topics(tree, names, random_bytes, known, is_strict=is_strict)
    changes: list[Change] = [TopicAdded(topic) for topic in topics]
    return LoadedTopics(changes, deleted, without_id)


async def read_named_topics(
    tree: Tree,
    names: Sequence[str],
    random_bytes: RandomBytes,
    known: Mapping[str, TopicImage] = _NO_TOPICS,
    *,
    is_strict: bool = False,
) -> tuple[list[TopicImage], list[str]]:
    """Returns the topics that exist, and the names of topics without an id in the tree.

    Such a topic has its id in `known`, because a tool of a Kafka before 2.8 wrote the node again, or gets a new id.
    A topic with a damaged node stays as it is in `known`, or is left out. Its logs stay as they are in both cases.
    With `is_strict`, raises BadNode instead.
    """
    count = len(names)
    nodes = await tree.get_many(
        [*(znodes.topic_path(name) for name in names), *(znodes.topic_config_path(name) for name in names)]
    )
    assignments: dict[str, znodes.ReplicaAssignment] = {}
    configs: dict[str, dict[str, str]] = {}
    kept: list[TopicImage] = []
    for name, topic_node, config_node in zip(names, nodes[:count], nodes[count:], strict=True):
        if topic_node is None:
            continue
        try:
            assignments[name] = znodes.decode_topic(name, topic_node.data)
            configs[name] = _decode_topic_configs(config_node, known.get(name))
        except znodes.BadNode as failure:
            assignments.pop(name, None)
            _on_damaged(name, failure, is_known=name in known, is_strict=is_strict)
            kept += [known[name]] if name in known else []
    states = await _read_states(tree, assignments, known, is_strict=is_strict)
    topics = [
        TopicImage(name, _topic_id(assignments[name], known.get(name), random_bytes), partitions, configs[name])
        for name, partitions in states.items()
    ]
    return [*topics, *kept], [name for name in states if assignments[name].topic_id is None]


def _on_damaged(name: str, failure: znodes.BadNode, *, is_known: bool, is_strict: bool) -> None:
    if is_strict:
        raise failure
    logger.error(
        "%s topic %s because a znode is not valid: %s",
        "Kept the known state of" if is_known else "Left out",
        name,
        failure,
    )


def _decode_topic_configs(node: Node | None, known: TopicImage | None) -> dict[str, str]:
    """Raises BadNode if a node of an unknown topic is damaged: with defaults, retention could delete records."""
    if node is None:
        return {}
    try:
        return znodes.decode_configs(node.data)
    except znodes.BadNode as failure:
        if known is None:
            raise
        logger.error("Kept the known configs of topic %s because the znode is not valid: %s", known.name, failure)
        return dict(known.configs)


def _topic_id(assignment: znodes.ReplicaAssignment, known: TopicImage | None, random_bytes: RandomBytes) -> bytes:
    if assignment.topic_id is not None:
        return assignment.topic_id
    return random_uuid(random_bytes) if known is None else known.id


async def _read_states(
    tree: Tree, assignments: dict[str, znodes.ReplicaAssignment], known: Mapping[str, TopicImage], *, is_strict: bool
) -> dict[str, tuple[PartitionState, ...]]:
    """Returns the partitions of each topic. Leaves out topics with a damaged state that are not in `known`."""
    paths = [
        znodes.state_path(name, index)
        for name, assignment in assignments.items()
        for index in sorted(assignment.replicas)
    ]
    nodes = iter(await tree.get_many(paths))
    # Most states are equal: sharing one value makes the start faster and the image smaller.
    decoded: dict[tuple[object, ...], PartitionState] = {}
    states: dict[str, tuple[PartitionState, ...]] = {}
    for name, assignment in assignments.items():
        partitions: list[PartitionState] = []
        damage: znodes.BadNode | None = None
        for index in sorted(assignment.replicas):
            node = next(nodes)
            replicas = assignment.replicas[index]
            adding, removing = assignment.adding.get(index, ()), assignment.removing.get(index, ())
            key = (node and (node.data, node.stat.version), replicas, adding, removing)
            if key not in decoded:
                try:
                    decoded[key] = _partition(node, replicas, adding, removing)
                except znodes.BadNode as failure:
                    damage = failure
                    partitions += _known_state(known.get(name), index, node)
                    continue
            partitions.append(decoded[key])
        is_complete = len(partitions) == len(assignment.replicas)
        if damage is not None:
            _on_damaged(name, damage, is_known=is_complete, is_strict=is_strict)
        if is_complete:
            states[name] = tuple(partitions)
    return states


def _known_state(topic: TopicImage | None, index: int, node: Node | None) -> list[PartitionState]:
    """Returns the known state of a partition whose node is damaged, so that the next election replaces the node."""
    if topic is None or node is None or index >= len(topic.partitions):
        return []
    return [topic.partitions[index]._replace(partition_epoch=node.stat.version)]


def _partition(
    node: Node | None, replicas: tuple[int, ...], adding: tuple[int, ...], removing: tuple[int, ...]
) -> PartitionState:
    if node is None:
        # The topic's creation was interrupted: the controller will elect a leader and create the node.
        return PartitionState(NO_LEADER, 0, (), replicas, partition_epoch=-1)
    return znodes.decode_state(node.data, node.stat.version, replicas=replicas, adding=adding, removing=removing)
