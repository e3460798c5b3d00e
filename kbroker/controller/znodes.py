"""Paths and contents of the tree's nodes, as Apache Kafka 3.9 has them in its ZooKeeper mode.

A node that Kafka wrote decodes here, and Kafka reads what is encoded here. Pure: bytes in, values out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from kbroker.config import Endpoint
from kbroker.controller.image import Broker, Partition
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
    "DEFAULT_BROKERS",
    "DEFAULT_ENTITY",
    "DELETE_TOPICS",
    "ENTITY_TYPES",
    "PERSISTENT_PATHS",
    "PRODUCER_ID_BLOCK",
    "TOPICS",
    "Assignment",
    "BadNode",
    "ProducerIdBlock",
]

BROKER_IDS: Final = "/brokers/ids"
BROKER_SEQUENCE: Final = "/brokers/seqid"
TOPICS: Final = "/brokers/topics"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
CLUSTER: Final = "/cluster"
CLUSTER_ID: Final = "/cluster/id"
CONFIG_CHANGES: Final = "/config/changes"
CONFIG_CHANGE_PREFIX: Final = "/config/changes/config_change_"
DELETE_TOPICS: Final = "/admin/delete_topics"

DEFAULT_ENTITY: Final = "<default>"
"""In the place of a name: whoever has no entry of their own."""
DEFAULT_BROKERS: Final = f"brokers/{DEFAULT_ENTITY}"
# Kafka 3.9 has the first four; the others live in KRaft alone there, and here in nodes of the same shape.
ENTITY_TYPES: Final = ("brokers", "users", "clients", "ips", "groups", "client-metrics")
PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"

# What a broker of Kafka's finds in place, or puts there, before it does anything else; parents come first.
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
    "/log_dir_event_notification",
    PRODUCER_ID_BLOCK,
    CLUSTER,
)


class BadNode(UserError):
    """A node whose content is not what its path promises: somebody must look at the tree."""


class Assignment(NamedTuple):
    """A topic's node: its id and where its partitions live, by number."""

    topic_id: bytes | None
    """None in a node that a Kafka before 2.8 wrote."""
    replicas: Mapping[int, tuple[int, ...]]
    adding: Mapping[int, tuple[int, ...]]
    removing: Mapping[int, tuple[int, ...]]


class ProducerIdBlock(NamedTuple):
    first: int
    last: int
    """The last id that belongs to the block."""


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
    """`entity` as in `entity_path`."""
    return f"/config/{entity}"


def entity_path(*parts: str | None) -> str:
    """users, alice, clients, None -> users/alice/clients/<default>: what the entity is called below /config."""
    kinds, names = parts[::2], parts[1::2]
    return "/".join(f"{kind}/{sanitize(name)}" for kind, name in zip(kinds, names, strict=True))


def split_entity_path(entity: str) -> list[tuple[str, str | None]]:
    parts = entity.split("/")
    return [(kind, desanitize(name)) for kind, name in zip(parts[::2], parts[1::2], strict=True)]


def sanitize(name: str | None) -> str:
    """Any name as the name of a node, as Kafka writes it; None is the default entity."""
    if name is None:
        return DEFAULT_ENTITY
    # A node cannot be called . or .., and Kafka itself could not keep such a name.
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe=".-_").replace("~", "%7E")


def desanitize(name: str) -> str | None:
    return None if name == DEFAULT_ENTITY else unquote(name)


def delete_topic_path(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


def _dump(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def _load(data: bytes, what: str) -> dict[str, Any]:
    try:
        # Decoded first: json would look for the encoding, and there are ten thousand of these at a start.
        content = json.loads(data.decode())
    except ValueError:
        raise BadNode(f"the node of {what} is not JSON") from None
    if not isinstance(content, dict):
        raise BadNode(f"the node of {what} is not a JSON object")
    return content


def encode_broker(broker: Broker, *, timestamp_ms: int) -> bytes:
    # Clients of old read host and port, and know only PLAINTEXT.
    plain = next((each for each in broker.endpoints if each.security_protocol == "PLAINTEXT"), None)
    content: dict[str, Any] = {
        "version": 5,
        "host": plain.host if plain else None,
        "port": plain.port if plain else -1,
        "endpoints": [str(endpoint) for endpoint in broker.endpoints],
        "jmx_port": -1,
        "timestamp": str(timestamp_ms),
        "listener_security_protocol_map": {each.name: each.security_protocol for each in broker.endpoints},
        "features": {},
    }
    if broker.rack is not None:
        content["rack"] = broker.rack
    return _dump(content)


def decode_broker(broker_id: int, data: bytes, *, epoch: int) -> Broker:
    content = _load(data, f"broker {broker_id}")
    protocols = content.get("listener_security_protocol_map", {})
    try:
        texts = content.get("endpoints") or [f"PLAINTEXT://{content['host']}:{content['port']}"]
        endpoints = tuple(_decode_endpoint(text, protocols) for text in texts)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadNode(f"the node of broker {broker_id} has no endpoints that can be read") from None
    return Broker(broker_id, epoch, endpoints, content.get("rack"))


def _decode_endpoint(text: str, protocols: Mapping[str, str]) -> Endpoint:
    name, _separator, address = text.partition("://")
    host, _colon, port = address.rpartition(":")
    return Endpoint(name, host.removeprefix("[").removesuffix("]"), int(port), protocols.get(name, name))


def encode_topic(topic_id: bytes, partitions: Sequence[Partition]) -> bytes:
    numbered = list(enumerate(partitions))
    return _dump(
        {
            "version": 3,
            "topic_id": uuid_to_text(topic_id),
            "partitions": {str(index): each.replicas for index, each in numbered},
            "adding_replicas": {str(i): each.adding_replicas for i, each in numbered if each.adding_replicas},
            "removing_replicas": {str(i): each.removing_replicas for i, each in numbered if each.removing_replicas},
        }
    )


def decode_topic(topic: str, data: bytes) -> Assignment:
    content = _load(data, f"topic {topic}")
    try:
        text = content.get("topic_id")
        replicas = _by_number(content["partitions"])
        if sorted(replicas) != list(range(len(replicas))):
            raise ValueError
        return Assignment(
            topic_id=None if text is None else uuid_from_text(text),
            replicas=replicas,
            adding=_by_number(content.get("adding_replicas", {})),
            removing=_by_number(content.get("removing_replicas", {})),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadNode(f"the node of topic {topic} has no assignment that can be read") from None


def _by_number(lists: Mapping[str, Sequence[int]]) -> dict[int, tuple[int, ...]]:
    return {int(index): tuple(brokers) for index, brokers in lists.items()}


def encode_state(partition: Partition) -> bytes:
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
) -> Partition:
    content = _load(data, "a partition's state")
    try:
        isr = tuple(content["isr"])
        return Partition(
            leader=content["leader"],
            leader_epoch=content["leader_epoch"],
            # Nearly always the same brokers: one tuple for both keeps ten thousand partitions small.
            isr=replicas if isr == replicas else isr,
            replicas=replicas,
            partition_epoch=version,
            controller_epoch=content["controller_epoch"],
            adding_replicas=adding,
            removing_replicas=removing,
        )
    except (KeyError, TypeError):
        raise BadNode("a partition's state lacks leader, epoch or ISR") from None


def encode_configs(configs: Mapping[str, str]) -> bytes:
    return _dump({"version": 1, "config": dict(configs)})


_NO_CONFIGS: Final = encode_configs({})


def decode_configs(data: bytes) -> dict[str, str]:
    """Empty data stands for no configs, as Kafka has it."""
    if not data or data == _NO_CONFIGS:
        return {}
    configs = _load(data, "configs").get("config", {})
    if not isinstance(configs, dict):
        raise BadNode("the node of configs holds none")
    return {str(name): str(value) for name, value in configs.items()}


def encode_config_change(entity_path: str) -> bytes:
    """`topics/<name>`: tells whoever watches that the configs of that entity are to be read again."""
    return _dump({"version": 2, "entity_path": entity_path})


def decode_config_change(data: bytes) -> str | None:
    """The entity, as in `entity_path`; None for a notification that nobody here could act upon."""
    try:
        content = _load(data, "a config change")
    except BadNode:
        return None
    path = content.get("entity_path")
    if path is None and content.get("version") == 1:  # as Kafka wrote it before 0.9
        path = f"{content.get('entity_type')}/{content.get('entity_name')}"
    return path if isinstance(path, str) else None


def encode_controller(broker_id: int, *, timestamp_ms: int) -> bytes:
    return _dump({"version": 2, "brokerid": broker_id, "timestamp": str(timestamp_ms), "kraftControllerEpoch": -1})


def decode_controller(data: bytes) -> int:
    broker_id = _load(data, "the controller").get("brokerid")
    if not isinstance(broker_id, int):
        raise BadNode("the node of the controller names no broker")
    return broker_id


def encode_epoch(epoch: int) -> bytes:
    return str(epoch).encode()


def decode_epoch(data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        raise BadNode("the controller epoch is not a number") from None


def encode_cluster_id(cluster_id: str) -> bytes:
    return _dump({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    cluster_id = _load(data, "the cluster id").get("id")
    if not isinstance(cluster_id, str):
        raise BadNode("the node of the cluster id holds none")
    return cluster_id


def encode_producer_id_block(block: ProducerIdBlock, *, broker_id: int) -> bytes:
    # The bounds are texts: they go beyond what every JSON reader takes for a whole number.
    return _dump({"version": 1, "broker": broker_id, "block_start": str(block.first), "block_end": str(block.last)})


def decode_producer_id_block(data: bytes) -> ProducerIdBlock | None:
    """None before the first block was taken."""
    if not data:
        return None
    content = _load(data, "the producer id block")
    try:
        return ProducerIdBlock(int(content["block_start"]), int(content["block_end"]))
    except (KeyError, TypeError, ValueError):
        raise BadNode("the node of the producer id block has no bounds") from None
