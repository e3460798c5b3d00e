"""Paths and contents of the tree's nodes, as in Apache Kafka 3.9 with ZooKeeper.

Kafka and kbroker read each other's nodes. Pure: bytes in, values out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kbroker.config.endpoints import Endpoint
from kbroker.controller.image import BrokerRegistration, PartitionState
from kbroker.errors import UserError
from kbroker.names import uuid_from_text, uuid_to_text

__all__ = [
    "BROKER_IDS",
    "BROKER_SEQUENCE",
    "CLUSTER",
    "CLUSTER_ID",
    "CONFIG_CHANGES",
    "CONTROLLER",
    "CONTROLLER_EPOCH",
    "DELETE_TOPICS",
    "LOG_DIR_EVENT",
    "LOG_DIR_EVENTS",
    "PERSISTENT_PATHS",
    "PREFERRED_REPLICA_ELECTION",
    "PRODUCER_ID_BLOCK",
    "REASSIGN_PARTITIONS",
    "TOPICS",
    "BadNode",
    "ProducerIdBlock",
    "ReplicaAssignment",
]

BROKER_IDS: Final = "/brokers/ids"
BROKER_SEQUENCE: Final = "/brokers/seqid"
TOPICS: Final = "/brokers/topics"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
CLUSTER: Final = "/cluster"
CLUSTER_ID: Final = "/cluster/id"
CONFIG_CHANGES: Final = "/config/changes"
LOG_DIR_EVENTS: Final = "/log_dir_event_notification"
LOG_DIR_EVENT: Final = f"{LOG_DIR_EVENTS}/log_dir_event_"
"""Path of an announcement that a data directory has failed, without its sequence number."""
CONFIG_CHANGE_PREFIX: Final = "/config/changes/config_change_"
DELETE_TOPICS: Final = "/admin/delete_topics"
REASSIGN_PARTITIONS: Final = "/admin/reassign_partitions"
PREFERRED_REPLICA_ELECTION: Final = "/admin/preferred_replica_election"

PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"

# Nodes that a broker of Apache Kafka creates at its start, parents first.
PERSISTENT_PATHS: Final = (
    "/consumers",
    "/brokers",
    BROKER_IDS,
    TOPICS,
    BROKER_SEQUENCE,
    "/config",
    CONFIG_CHANGES,
    "/config/topics",
    "/config/clients",
    "/config/users",
    "/config/brokers",
    "/config/ips",
    "/admin",
    DELETE_TOPICS,
    "/isr_change_notification",
    LOG_DIR_EVENTS,
    PRODUCER_ID_BLOCK,
    CLUSTER,
)


_INTEGER: Final = frozenset({int})  # bool is another type


class BadNode(UserError):
    """A node has invalid content: an operator must repair the tree."""


class ReplicaAssignment(NamedTuple):
    """Content of a topic's node: topic id and replicas of each partition, by partition number."""

    topic_id: bytes | None
    """None in a node written by a Kafka before 2.8."""
    replicas: Mapping[int, tuple[int, ...]]
    adding: Mapping[int, tuple[int, ...]]
    removing: Mapping[int, tuple[int, ...]]


class ProducerIdBlock(NamedTuple):
    first: int
    last: int
    """Last id of the block, inclusive."""


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}"


def state_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def topic_config_path(topic: str) -> str:
    return f"/config/topics/{topic}"


def entity_config_path(entity: str) -> str:
    """`entity`: as in `config_entities.entity_path`."""
    return f"/config/{entity}"


def delete_topic_path(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


def _dump(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def _load(data: bytes, owner: str) -> dict[str, Any]:
    try:
        # Decoded first: json.loads would detect the encoding, which is slow for ten thousand nodes at a start.
        content = json.loads(data.decode())
    except ValueError:
        raise BadNode(f"The node of {owner} is not JSON.") from None
    if not isinstance(content, dict):
        raise BadNode(f"The node of {owner} is not a JSON object.")
    return content


def encode_broker(broker: BrokerRegistration, *, timestamp_ms: int) -> bytes:
    # Old clients read host and port, and support only PLAINTEXT.
    plaintext = (endpoint for endpoint in broker.endpoints if endpoint.security_protocol == "PLAINTEXT")
    plain = next(plaintext, None)
    content: dict[str, Any] = {
        "version": 5,
        "host": plain.host if plain else None,
        "port": plain.port if plain else -1,
        "endpoints": [str(endpoint) for endpoint in broker.endpoints],
        "jmx_port": -1,
        "timestamp": str(timestamp_ms),
        "listener_security_protocol_map": {endpoint.name: endpoint.security_protocol for endpoint in broker.endpoints},
        "features": {},
    }
    if broker.rack is not None:
        content["rack"] = broker.rack
    return _dump(content)


def decode_broker(broker_id: int, data: bytes, *, epoch: int) -> BrokerRegistration:
    content = _load(data, f"broker {broker_id}")
    protocols = content.get("listener_security_protocol_map", {})
    try:
        texts = content.get("endpoints") or [f"PLAINTEXT://{content['host']}:{content['port']}"]
        endpoints = tuple(_decode_endpoint(text, protocols) for text in texts)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadNode(f"The node of broker {broker_id} has no valid endpoints.") from None
    return BrokerRegistration(broker_id, epoch, endpoints, content.get("rack"))


def _decode_endpoint(text: str, protocols: Mapping[str, str]) -> Endpoint:
    name, _separator, address = text.partition("://")
    host, _colon, port = address.rpartition(":")
    return Endpoint(name, host.removeprefix("[").removesuffix("]"), int(port), protocols.get(name, name))


def encode_topic(topic_id: bytes, partitions: Sequence[PartitionState]) -> bytes:
    numbered = list(enumerate(partitions))
    return _dump(
        {
            "version": 3,
            "topic_id": uuid_to_text(topic_id),
            "partitions": {str(index): state.replicas for index, state in numbered},
            "adding_replicas": {str(i): state.adding_replicas for i, state in numbered if state.adding_replicas},
            "removing_replicas": {str(i): state.removing_replicas for i, state in numbered if state.removing_replicas},
        }
    )


def decode_topic(topic: str, data: bytes) -> ReplicaAssignment:
    content = _load(data, f"topic {topic}")
    try:
        text = content.get("topic_id")
        replicas = _by_number(content["partitions"])
        if sorted(replicas) != list(range(len(replicas))):
            raise ValueError
        return ReplicaAssignment(
            topic_id=None if text is None else uuid_from_text(text),
            replicas=replicas,
            adding=_by_number(content.get("adding_replicas", {})),
            removing=_by_number(content.get("removing_replicas", {})),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadNode(f"The node of topic {topic} has no valid assignment.") from None


def _by_number(lists: Mapping[str, Sequence[int]]) -> dict[int, tuple[int, ...]]:
    """Raises ValueError or TypeError if an index is not a number, or a list has anything but integers."""
    return {int(index): _integers(brokers) for index, brokers in lists.items()}


def _integers(values: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(values, list) or not _INTEGER.issuperset(map(type, values)):
        raise TypeError
    return tuple(values)


def encode_reassignments(moves: Mapping[tuple[str, int], Sequence[int]]) -> bytes:
    """Returns the content of /admin/reassign_partitions: new replicas by topic and partition."""
    partitions = [
        {"topic": topic, "partition": partition, "replicas": replicas} for (topic, partition), replicas in moves.items()
    ]
    return _dump({"version": 1, "partitions": partitions})


def decode_reassignments(data: bytes) -> dict[tuple[str, int], tuple[int, ...]]:
    entries = _partition_entries(data, "the reassignments")
    moves = {key: entry.get("replicas") for key, entry in entries.items()}
    if not all(isinstance(replicas, list) and all(map(_is_integer, replicas)) for replicas in moves.values()):
        raise BadNode("The node of the reassignments has a partition without a list of brokers.")
    return {key: tuple(replicas or ()) for key, replicas in moves.items()}


def decode_preferred_election(data: bytes) -> list[tuple[str, int]]:
    """Returns the partitions of /admin/preferred_replica_election."""
    return list(_partition_entries(data, "the preferred replica election"))


def _partition_entries(data: bytes, owner: str) -> dict[tuple[str, int], dict[str, Any]]:
    entries = _load(data, owner).get("partitions")
    if not isinstance(entries, list):
        raise BadNode(f"The node of {owner} has no list of partitions.")
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for entry in entries:
        if (
            not isinstance(entry, dict)
            or not isinstance(entry.get("topic"), str)
            or not _is_integer(entry.get("partition"))
        ):
            raise BadNode(f"The node of {owner} has an entry without topic or partition.")
        found[entry["topic"], entry["partition"]] = entry
    return found


def _is_integer(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def encode_log_dir_event(broker_id: int) -> bytes:
    return _dump({"version": 1, "broker": broker_id, "event": 1})


def decode_log_dir_event(data: bytes) -> int | None:
    """Returns the id of the broker; None if the node is damaged."""
    try:
        broker_id = _load(data, "a log dir event").get("broker")
    except BadNode:
        return None
    return broker_id if isinstance(broker_id, int) else None


def encode_state(partition: PartitionState) -> bytes:
    return _dump(
        {
            "version": 1,
            "leader": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "controller_epoch": partition.controller_epoch,
            "isr": partition.isr,
        }
    )


def decode_state(
    data: bytes,
    version: int,
    *,
    replicas: tuple[int, ...],
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
) -> PartitionState:
    content = _load(data, "a partition's state")
    try:
        isr = _integers(content["isr"])
        leader, leader_epoch, controller_epoch = _integers(
            [content["leader"], content["leader_epoch"], content["controller_epoch"]]
        )
        return PartitionState(
            leader=leader,
            leader_epoch=leader_epoch,
            # Usually equal: sharing one tuple saves memory with ten thousand partitions.
            isr=replicas if isr == replicas else isr,
            replicas=replicas,
            partition_epoch=version,
            controller_epoch=controller_epoch,
            adding_replicas=adding,
            removing_replicas=removing,
        )
    except (KeyError, TypeError):
        raise BadNode("A partition's state has no leader, epoch or ISR.") from None


def encode_configs(configs: Mapping[str, str]) -> bytes:
    return _dump({"version": 1, "config": dict(configs)})


_NO_CONFIGS: Final = encode_configs({})


def decode_configs(data: bytes) -> dict[str, str]:
    """Returns the configs. Empty data means no configs, as in Kafka."""
    if not data or data == _NO_CONFIGS:
        return {}
    configs = _load(data, "configs").get("config", {})
    if not isinstance(configs, dict):
        raise BadNode("A config node has no configs.")
    return {str(name): str(value) for name, value in configs.items()}


def encode_config_change(entity_path: str) -> bytes:
    """Returns the announcement that the configs of an entity, for example `topics/<name>`, have changed."""
    return _dump({"version": 2, "entity_path": entity_path})


def decode_config_change(data: bytes) -> str | None:
    """Returns the announced entity, or None if kbroker cannot use the announcement."""
    try:
        content = _load(data, "a config change")
    except BadNode:
        return None
    path = content.get("entity_path")
    if path is None and content.get("version") == 1:  # written by a Kafka before 0.9
        path = f"{content.get('entity_type')}/{content.get('entity_name')}"
    return path if isinstance(path, str) else None


def encode_controller(broker_id: int, *, timestamp_ms: int) -> bytes:
    return _dump({"version": 2, "brokerid": broker_id, "timestamp": str(timestamp_ms), "kraftControllerEpoch": -1})


def decode_controller(data: bytes) -> int:
    broker_id = _load(data, "the controller").get("brokerid")
    if not isinstance(broker_id, int):
        raise BadNode("The controller's node has no broker id.")
    return broker_id


def encode_epoch(epoch: int) -> bytes:
    return str(epoch).encode()


def decode_epoch(data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        raise BadNode("The controller epoch is not a number.") from None


def encode_cluster_id(cluster_id: str) -> bytes:
    return _dump({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    cluster_id = _load(data, "the cluster id").get("id")
    if not isinstance(cluster_id, str):
        raise BadNode("The node of the cluster id has no id.")
    return cluster_id


def encode_producer_id_block(block: ProducerIdBlock, *, broker_id: int) -> bytes:
    # Strings, because ids may be too large for integers of some JSON parsers.
    return _dump({"version": 1, "broker": broker_id, "block_start": str(block.first), "block_end": str(block.last)})


def decode_producer_id_block(data: bytes) -> ProducerIdBlock | None:
    """Returns None before the first block was allocated."""
    if not data:
        return None
    content = _load(data, "the producer id block")
    try:
        return ProducerIdBlock(int(content["block_start"]), int(content["block_end"]))
    except (KeyError, TypeError, ValueError):
        raise BadNode("The node of the producer id block has no bounds.") from None
