"""Topics: creates, extends and deletes them (CreateTopics, CreatePartitions, DeleteTopics)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kbroker.client.cluster import Cluster
from kbroker.client.connection import BrokerConnection
from kbroker.client.controller_requests import send_to_controller
from kbroker.protocol.registry import api

__all__ = ["BROKER_DEFAULT", "CreatedTopic", "create_partitions", "create_topic", "delete_topic"]

CREATE_TOPICS: Final = api(19)
DELETE_TOPICS: Final = api(20)
CREATE_PARTITIONS: Final = api(37)

BROKER_DEFAULT: Final = -1
"""Number of partitions or replication factor: use the broker's default. Requires CreateTopics v4."""

_TIMEOUT_MS: Final = 30_000


class CreatedTopic(NamedTuple):
    name: str
    topic_id: bytes
    partitions: int
    """-1 if the broker is too old to return it."""
    replication_factor: int


async def create_topic(
    cluster: Cluster,
    name: str,
    *,
    partitions: int = BROKER_DEFAULT,
    replication_factor: int = BROKER_DEFAULT,
    configs: Mapping[str, str] | None = None,
    validate_only: bool = False,
) -> CreatedTopic:
    from kbroker.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig

    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )

    async def send(connection: BrokerConnection) -> Any:
        response = await connection.send(
            CREATE_TOPICS,
            at_least=4 if BROKER_DEFAULT in (partitions, replication_factor) else 1,
            topics=[topic],
            timeout_ms=_TIMEOUT_MS,
            validate_only=validate_only,
        )
        return response.topics[0]

    created = await send_to_controller(cluster, f"topic {name}", send)
    return CreatedTopic(name, bytes(created.topic_id), created.num_partitions, created.replication_factor)


async def delete_topic(cluster: Cluster, name: str) -> None:
    from kbroker.protocol.messages.delete_topics import DeleteTopicState

    async def send(connection: BrokerConnection) -> Any:
        topics = [DeleteTopicState(name=name)]
        response = await connection.send(DELETE_TOPICS, topics=topics, topic_names=[name], timeout_ms=_TIMEOUT_MS)
        return response.responses[0]

    await send_to_controller(cluster, f"topic {name}", send)


async def create_partitions(cluster: Cluster, name: str, count: int, *, validate_only: bool = False) -> None:
    """Adds partitions to a topic. `count` is the new total."""
    from kbroker.protocol.messages.create_partitions import CreatePartitionsTopic

    async def send(connection: BrokerConnection) -> Any:
        topics = [CreatePartitionsTopic(name=name, count=count, assignments=None)]
        response = await connection.send(
            CREATE_PARTITIONS, topics=topics, timeout_ms=_TIMEOUT_MS, validate_only=validate_only
        )
        return response.results[0]

    await send_to_controller(cluster, f"topic {name}", send)
