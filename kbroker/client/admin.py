"""What an administrator asks for: topics made, widened and deleted, configs seen and changed, the cluster described."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from kbroker.client.cluster import Cluster
from kbroker.client.connection import Connection
from kbroker.client.failures import BrokerRefusal, ConnectionFailed
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.registry import api

__all__ = [
    "BROKER_DEFAULT",
    "ConfigChange",
    "ConfigEntry",
    "ConfigOperation",
    "ConfigSource",
    "ConfigType",
    "CreatedTopic",
    "ResourceType",
    "alter_configs",
    "create_partitions",
    "create_topic",
    "delete_topic",
    "describe_configs",
]

CREATE_TOPICS: Final = api(19)
DELETE_TOPICS: Final = api(20)
DESCRIBE_CONFIGS: Final = api(32)
CREATE_PARTITIONS: Final = api(37)
INCREMENTAL_ALTER_CONFIGS: Final = api(44)

BROKER_DEFAULT: Final = -1
"""Partitions or replication factor: the broker decides. Known since CreateTopics v4."""

_TIMEOUT_MS: Final = 30_000


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigType(IntEnum):
    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigOperation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class CreatedTopic(NamedTuple):
    name: str
    topic_id: bytes
    partitions: int
    """-1 where the broker is too old to say."""
    replication_factor: int


class ConfigEntry(NamedTuple):
    name: str
    value: str | None
    source: int
    config_type: int
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None

    @property
    def is_default(self) -> bool:
        return self.source == ConfigSource.DEFAULT


class ConfigChange(NamedTuple):
    operation: ConfigOperation
    name: str
    value: str | None = None


async def _at_controller(cluster: Cluster, subject: str, ask: Callable[[Connection], Awaitable[Any]]) -> Any:
    """The one result of a change, which goes to the controller; tried again while there is none, or another."""
    patience = cluster.patience()
    while True:
        try:
            result = await ask(await cluster.controller_connection())
        except ConnectionFailed as failure:
            await patience.pause(failure)
            await cluster.refresh([])
            continue
        if result.error_code == ErrorCode.NONE:
            return result
        refusal = BrokerRefusal(result.error_code, subject, getattr(result, "error_message", None))
        if refusal.code not in (ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED):
            raise refusal
        await patience.pause(refusal)
        await cluster.refresh([])


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

    async def ask(connection: Connection) -> Any:
        response = await connection.ask(
            CREATE_TOPICS,
            at_least=4 if BROKER_DEFAULT in (partitions, replication_factor) else 1,
            topics=[topic],
            timeout_ms=_TIMEOUT_MS,
            validate_only=validate_only,
        )
        return response.topics[0]

    made = await _at_controller(cluster, f"topic {name}", ask)
    return CreatedTopic(name, bytes(made.topic_id), made.num_partitions, made.replication_factor)


async def delete_topic(cluster: Cluster, name: str) -> None:
    from kbroker.protocol.messages.delete_topics import DeleteTopicState

    async def ask(connection: Connection) -> Any:
        topics = [DeleteTopicState(name=name)]
        response = await connection.ask(DELETE_TOPICS, topics=topics, topic_names=[name], timeout_ms=_TIMEOUT_MS)
        return response.responses[0]

    await _at_controller(cluster, f"topic {name}", ask)


async def create_partitions(cluster: Cluster, name: str, count: int, *, validate_only: bool = False) -> None:
    """`count` is how many the topic has afterwards."""
    from kbroker.protocol.messages.create_partitions import CreatePartitionsTopic

    async def ask(connection: Connection) -> Any:
        topics = [CreatePartitionsTopic(name=name, count=count, assignments=None)]
        response = await connection.ask(
            CREATE_PARTITIONS, topics=topics, timeout_ms=_TIMEOUT_MS, validate_only=validate_only
        )
        return response.results[0]

    await _at_controller(cluster, f"topic {name}", ask)


async def _config_connection(cluster: Cluster, resource_type: ResourceType, name: str) -> Connection:
    """A broker's own configs are asked of itself; everybody knows the others."""
    if resource_type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and name:
        return await cluster.broker_connection(int(name))
    return await cluster.controller_connection()


async def describe_configs(
    cluster: Cluster,
    resource_type: ResourceType,
    name: str,
    *,
    keys: Iterable[str] | None = None,
    with_documentation: bool = False,
) -> list[ConfigEntry]:
    """Sorted by name; the configs named, or all."""
    from kbroker.protocol.messages.describe_configs import DescribeConfigsResource

    asked = DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=None if keys is None else list(keys)
    )
    connection = await _config_connection(cluster, resource_type, name)
    response = await connection.ask(
        DESCRIBE_CONFIGS, at_least=1, resources=[asked], include_documentation=with_documentation
    )
    (result,) = response.results
    if result.error_code != ErrorCode.NONE:
        raise BrokerRefusal(result.error_code, _resource(resource_type, name), result.error_message)
    entries = (
        ConfigEntry(
            each.name,
            each.value,
            each.config_source,
            each.config_type,
            each.read_only,
            each.is_sensitive,
            each.documentation,
        )
        for each in result.configs
    )
    return sorted(entries, key=lambda each: each.name)


async def alter_configs(
    cluster: Cluster,
    resource_type: ResourceType,
    name: str,
    changes: Sequence[ConfigChange],
    *,
    validate_only: bool = False,
) -> None:
    from kbroker.protocol.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource

    configs = [
        AlterableConfig(name=change.name, config_operation=change.operation, value=change.value) for change in changes
    ]
    asked = AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=configs)
    connection = await _config_connection(cluster, resource_type, name)
    response = await connection.ask(INCREMENTAL_ALTER_CONFIGS, resources=[asked], validate_only=validate_only)
    (result,) = response.responses
    if result.error_code != ErrorCode.NONE:
        raise BrokerRefusal(result.error_code, _resource(resource_type, name), result.error_message)


def _resource(resource_type: ResourceType, name: str) -> str:
    kind = resource_type.name.lower().replace("_", " ")
    return f"{kind} {name}" if name else f"every {kind}"
