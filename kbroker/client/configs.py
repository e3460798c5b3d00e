"""Configs of topics, brokers and groups: describes and alters them (DescribeConfigs, IncrementalAlterConfigs)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kbroker.client.cluster import Cluster
from kbroker.client.connection import BrokerConnection
from kbroker.client.failures import BrokerRefusal, NotServed
from kbroker.config.key import ConfigSource
from kbroker.config.resources import ConfigOperation, ConfigResourceType
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.registry import api

__all__ = [
    "ConfigChange",
    "DescribedConfig",
    "alter_configs",
    "describe_configs",
    "min_insync_replicas",
    "topic_overrides",
]

DESCRIBE_CONFIGS: Final = api(32)
INCREMENTAL_ALTER_CONFIGS: Final = api(44)


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
