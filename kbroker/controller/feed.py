"""What the tree holds, read into changes that make an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.controller import znodes
from kbroker.controller.changes import Change, EntityConfigsChanged, TopicAdded
from kbroker.controller.image import NO_LEADER, Broker, Partition, Topic
from kbroker.controller.tree import Create, Node, NodeExists, NoNode, Tree
from kbroker.names import RandomBytes, random_uuid, uuid_to_text

__all__ = [
    "Loaded",
    "ensure_layout",
    "read_brokers",
    "read_cluster_id",
    "read_entity_configs",
    "read_named_topics",
    "read_topics",
]


class Loaded(NamedTuple):
    changes: list[Change]
    pending_deletions: list[str]
    """Topics whose deletion was begun and not finished; they are not among the changes."""
    topics_without_id: list[str]
    """Topics that a Kafka before 2.8 made; they got an id here that the tree does not know yet."""


async def ensure_layout(tree: Tree) -> None:
    """The nodes that everything else hangs from."""
    nodes = await tree.get_many(znodes.PERSISTENT_PATHS)
    missing = [path for path, node in zip(znodes.PERSISTENT_PATHS, nodes, strict=True) if node is None]
    try:
        await tree.multi([Create(path) for path in missing])
    except NodeExists:
        # Another broker does the same at the same moment.
        await ensure_layout(tree)


async def read_cluster_id(tree: Tree, random_bytes: RandomBytes) -> str:
    """The cluster's id; the first broker ever to ask makes it."""
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
    """Configs of brokers and groups, quotas of users, clients and addresses: all that is not empty."""
    entities: list[str] = []
    for kind in znodes.ENTITY_TYPES:
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


async def read_brokers(tree: Tree, broker_ids: Sequence[int]) -> dict[int, Broker]:
    """Those of them that are there, each with its epoch."""
    nodes = await tree.get_many([znodes.broker_path(each) for each in broker_ids])
    return {
        broker_id: znodes.decode_broker(broker_id, node.data, epoch=node.stat.czxid)
        for broker_id, node in zip(broker_ids, nodes, strict=True)
        if node is not None
    }


async def read_topics(tree: Tree, random_bytes: RandomBytes) -> Loaded:
    """Every topic, in three rounds of reads however many there are."""
    deleted = await tree.children(znodes.DELETE_TOPICS)
    names = sorted(set(await tree.children(znodes.TOPICS)).difference(deleted))
    topics, without_id = await read_named_topics(tree, names, random_bytes)
    changes: list[Change] = [TopicAdded(topic) for topic in topics]
    return Loaded(changes, deleted, without_id)


async def read_named_topics(
    tree: Tree, names: Sequence[str], random_bytes: RandomBytes
) -> tuple[list[Topic], list[str]]:
    """Those of them that are there, and the names of those that lacked an id and got one here."""
    count = len(names)
    nodes = await tree.get_many(
        [*(znodes.topic_path(name) for name in names), *(znodes.topic_config_path(name) for name in names)]
    )
    assignments: dict[str, znodes.Assignment] = {}
    configs: dict[str, dict[str, str]] = {}
    for name, topic_node, config_node in zip(names, nodes[:count], nodes[count:], strict=True):
        if topic_node is not None:
            assignments[name] = znodes.decode_topic(name, topic_node.data)
            configs[name] = {} if config_node is None else znodes.decode_configs(config_node.data)
    states = await _read_states(tree, assignments)
    without_id = [name for name, assignment in assignments.items() if assignment.topic_id is None]
    topics = [
        Topic(name, assignment.topic_id or random_uuid(random_bytes), states[name], configs[name])
        for name, assignment in assignments.items()
    ]
    return topics, without_id


async def _read_states(tree: Tree, assignments: dict[str, znodes.Assignment]) -> dict[str, tuple[Partition, ...]]:
    paths = [znodes.state_path(name, index) for name, each in assignments.items() for index in sorted(each.replicas)]
    nodes = iter(await tree.get_many(paths))
    # Most states are alike, byte for byte: they share one value, which keeps a start quick and the image small.
    known: dict[tuple[object, ...], Partition] = {}
    states: dict[str, tuple[Partition, ...]] = {}
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
) -> Partition:
    if node is None:
        # Its creation was cut short: whoever is the controller gives it a leader.
        return Partition(NO_LEADER, 0, (), replicas, partition_epoch=-1)
    return znodes.decode_state(node.data, node.stat.version, replicas=replicas, adding=adding, removing=removing)
