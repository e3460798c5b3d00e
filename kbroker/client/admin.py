"""Admin operations: create, extend and delete topics, describe and alter configs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kbroker.client.cluster import Cluster
from kbroker.client.connection import BrokerConnection
from kbroker.client.failures import BrokerRefusal, ConnectionFailed, CouldNotConnect, NotServed
from kbroker.config.key import ConfigSource
from kbroker.config.resources import ConfigOperation, ConfigResourceType
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.registry import api

__all__ = [
    "BROKER_DEFAULT",
    "ConfigChange",
    "CreatedTopic",
    "DescribedConfig",
    "alter_configs",
    "create_partitions",
    "create_topic",
    "delete_topic",
    "describe_configs",
    "min_insync_replicas",
    "send_to_controller",
    "topic_overrides",
]

CREATE_TOPICS: Final = api(19)
DELETE_TOPICS: Final = api(20)
DESCRIBE_CONFIGS: Final = api(32)
CREATE_PARTITIONS: Final = api(37)
INCREMENTAL_ALTER_CONFIGS: Final = api(44)

BROKER_DEFAULT: Final = -1
"""Number of partitions or replication factor: use the broker's default. Requires CreateTopics v4."""

_TIMEOUT_MS: Final = 30_000


class CreatedTopic(NamedTuple):
    name: str
    topic_id: bytes
    partitions: int
    """-1 if the broker is too old to return it."""
    replication_factor: int


class DescribedConfig(NamedTuple):
    name: str
    value: str | None
    source: int
    """A ConfigSource, or a number that only a newer Kafka knows."""
    config_type: int
    """A ConfigType, or a number that only a newer Kafka knows."""
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None

    @property
    def is_default(self) -> bool:
        return self.source == ConfigSource.DEFAULT_CONFIG


class ConfigChange(NamedTuple):
    operation: ConfigOperation
    name: str
    value: str | None = None


async def send_to_controller(cluster: Cluster, subject: str, send: Callable[[BrokerConnection], Awaitable[Any]]) -> Any:
    """Sends a change to the controller and returns its only result.

    Retries while the controller is unknown or moves.
    """
    backoff = cluster.backoff()
    while True:
        try:
            result = await send(await cluster.controller_connection())
        except ConnectionFailed as failure:
            await backoff.pause(_with_advice(failure, subject))
            await cluster.refresh([])
            continue
        if result.error_code == ErrorCode.NONE:
            return result
        refusal = BrokerRefusal(result.error_code, subject, getattr(result, "error_message", None))
        if refusal.code not in (ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED):
            raise refusal
        await backoff.pause(refusal)
        await cluster.refresh([])


def _with_advice(failure: ConnectionFailed, subject: str) -> ConnectionFailed:
    """Says that the change may still happen, unless the request was never sent.

    A controller that has lost ZooKeeper does not answer, but writes the change when ZooKeeper is back, as Apache Kafka.
    """
    if isinstance(failure, CouldNotConnect):
        return failure
    advice = f"the controller may still make the change to {subject}, so look at it before you try again"
    return ConnectionFailed(failure.address, f"{failure}; {advice}")


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


async def _config_connection(cluster: Cluster, resource_type: ConfigResourceType, name: str) -> BrokerConnection:
    """Connects to the broker that owns the configs: the named broker for its own configs, else the controller."""
    if resource_type in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER) and name:
        return await cluster.broker_connection(int(name))
    return await cluster.controller_connection()


async def describe_configs(
    cluster: Cluster,
    resource_type: ConfigResourceType,
    name: str,
    *,
    keys: Iterable[str] | None = None,
    with_documentation: bool = False,
) -> list[DescribedConfig]:
    """Returns the configs named by `keys`, or all if None, sorted by name."""
    from kbroker.protocol.messages.describe_configs import DescribeConfigsResource

    resource = DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=None if keys is None else list(keys)
    )
    connection = await _config_connection(cluster, resource_type, name)
    response = await connection.send(
        DESCRIBE_CONFIGS, at_least=1, resources=[resource], include_documentation=with_documentation
    )
    (result,) = response.results
    if result.error_code != ErrorCode.NONE:
        raise BrokerRefusal(result.error_code, _resource(resource_type, name), result.error_message)
    entries = (
        DescribedConfig(
            config.name,
            config.value,
            config.config_source,
            config.config_type,
            config.read_only,
            config.is_sensitive,
            config.documentation,
        )
        for config in result.configs
    )
    return sorted(entries, key=lambda entry: entry.name)


async def topic_overrides(cluster: Cluster, name: str) -> dict[str, str | None]:
    """Returns the configs set on the topic itself; none if the broker does not support DescribeConfigs."""
    try:
        entries = await describe_configs(cluster, ConfigResourceType.TOPIC, name)
    except NotServed:
        return {}
    return {entry.name: entry.value for entry in entries if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG}


async def min_insync_replicas(cluster: Cluster, topic: str) -> int:
    found = await describe_configs(cluster, ConfigResourceType.TOPIC, topic, keys=["min.insync.replicas"])
    return int(found[0].value or 1) if found else 1


async def alter_configs(
    cluster: Cluster,
    resource_type: ConfigResourceType,
    name: str,
    changes: Sequence[ConfigChange],
    *,
    validate_only: bool = False,
) -> None:
    from kbroker.protocol.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource

    configs = [
        AlterableConfig(name=change.name, config_operation=change.operation, value=change.value) for change in changes
    ]
    resource = AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=configs)
    connection = await _config_connection(cluster, resource_type, name)
    response = await connection.send(INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=validate_only)
    (result,) = response.responses
    if result.error_code != ErrorCode.NONE:
        raise BrokerRefusal(result.error_code, _resource(resource_type, name), result.error_message)


def _resource(resource_type: ConfigResourceType, name: str) -> str:
    kind = resource_type.name.lower().replace("_", " ")
    return f"{kind} {name}" if name else f"every {kind}"
