"""What has configs that clients may read and change: topics, brokers, their loggers, groups, client metrics.

Says what each resource holds now, and who may ask; what becomes of it is said by `config_changes.py`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from kbroker.config import (
    ConfigEntry,
    ConfigSource,
    ConfigType,
    describe_broker_configs,
    describe_default_broker_configs,
    describe_topic_configs,
)
from kbroker.controller.znodes import entity_path
from kbroker.errors import Refusal
from kbroker.group_config import describe_group_configs
from kbroker.names import topic_name_problem
from kbroker.protocol.error_codes import ErrorCode
from kbroker.server.authorization import Operation, ResourceType
from kbroker.server.broker_loggers import level_of_each_logger
from kbroker.server.client_metrics import describe_subscription
from kbroker.server.permissions import allows_cluster, allows_topic

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["ConfigResourceType", "authorization_refusal", "describe", "resource_type"]


class ConfigResourceType(IntEnum):
    """The numbers are those of the wire."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


def resource_type(number: int) -> ConfigResourceType:
    try:
        return ConfigResourceType(number)
    except ValueError:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown resource type {number}") from None


def authorization_refusal(
    context: Context, request: Request, operation: Operation, kind: ConfigResourceType, name: str
) -> Refusal | None:
    """Why the client may not do this with the configs of the resource, or None."""
    match kind:
        case ConfigResourceType.TOPIC:
            is_allowed = allows_topic(context, request, operation, name)
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        case ConfigResourceType.GROUP:
            authorizer = context.authorizer
            is_allowed = authorizer.allows_all or authorizer.allows(
                request.principal, request.client_host, operation, ResourceType.GROUP, name
            )
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        case _:
            is_allowed = allows_cluster(context, request, operation)
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return None if is_allowed else Refusal(code, "Authorization failed.")


def describe(context: Context, kind: ConfigResourceType, name: str) -> list[ConfigEntry]:
    """Every config of the resource; a Refusal where there is no such resource."""
    image = context.controller.image
    match kind:
        case ConfigResourceType.TOPIC:
            problem = topic_name_problem(name)
            if problem is not None:
                raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
            topic = image.topic(name)
            if topic is None:
                raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
            return describe_topic_configs(context.config, topic.configs)
        case ConfigResourceType.BROKER:
            if not name:
                return describe_default_broker_configs(context.config)
            _check_broker_id(context, name, or_empty=" or empty string,")
            return describe_broker_configs(context.config, _facts(context))
        case ConfigResourceType.BROKER_LOGGER:
            if not name:
                raise Refusal(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
            _check_broker_id(context, name)
            source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
            return [
                ConfigEntry(logger, level, source, ConfigType.UNKNOWN)
                for logger, level in level_of_each_logger().items()
            ]
        case ConfigResourceType.CLIENT_METRICS:
            if not name:
                raise Refusal(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
            return describe_subscription(image.configs_of(entity_path("client-metrics", name)))
        case ConfigResourceType.GROUP:
            if not name:
                raise Refusal(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            return describe_group_configs(context.config, image.configs_of(entity_path("groups", name)))


def _check_broker_id(context: Context, name: str, *, or_empty: str = "") -> None:
    try:
        broker_id = int(name)
    except ValueError:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}") from None
    if broker_id != context.broker_id:
        expected = f"{context.broker_id}{or_empty}"
        message = f"Unexpected broker id, expected {expected} but received {name}"
        raise Refusal(ErrorCode.INVALID_REQUEST, message)


def _facts(context: Context) -> dict[str, str]:
    """What came out otherwise than the properties say: the id, the directories, ports that the system chose."""
    config = context.config
    facts = {
        "broker.id": str(context.broker_id),
        "log.dirs": ",".join(context.partitions.gates),
    }
    broker = context.controller.image.brokers.get(context.broker_id)
    if broker is not None and not config.advertised_listeners:
        bound = {endpoint.name: endpoint.port for endpoint in broker.endpoints}
        endpoints = [each._replace(port=each.port or bound.get(each.name, 0)) for each in config.endpoints]
        facts["listeners"] = ",".join(map(str, endpoints))
    return facts
