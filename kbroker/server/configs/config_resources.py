"""Resources with configs: topics, brokers, their loggers, groups, client metrics. Describes and authorizes them.

Never changes a config: config_changes.py does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kbroker.config.describe import describe_broker_configs, describe_default_broker_configs, describe_topic_configs
from kbroker.config.group import describe_group_configs
from kbroker.config.key import ConfigEntry, ConfigSource, ConfigType
from kbroker.config.resources import ConfigResourceType
from kbroker.controller.config_entities import entity_path
from kbroker.errors import Refusal
from kbroker.names import topic_name_problem
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.server.access.permissions import allows_cluster, allows_group, allows_topic
from kbroker.server.configs.broker_loggers import level_of_each_logger
from kbroker.server.configs.client_metrics import describe_subscription

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["authorization_refusal", "describe", "resource_type"]


_TEXTS: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
}


def resource_type(number: int) -> ConfigResourceType:
    try:
        return ConfigResourceType(number)
    except ValueError:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown resource type {number}") from None


def authorization_refusal(
    context: Context, request: Request, operation: AclOperation, kind: ConfigResourceType, name: str
) -> Refusal | None:
    """Returns a Refusal if the client is not authorized for the operation on the resource, else None."""
    match kind:
        case ConfigResourceType.TOPIC:
            is_allowed = allows_topic(context, request, operation, name)
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        case ConfigResourceType.GROUP:
            is_allowed = allows_group(context, request, operation, name)
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        case _:
            is_allowed = allows_cluster(context, request, operation)
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    # As in Kafka, responses to changes have no text.
    text = _TEXTS[code] if operation is AclOperation.DESCRIBE_CONFIGS else None
    return None if is_allowed else Refusal(code, text)


def describe(context: Context, kind: ConfigResourceType, name: str) -> list[ConfigEntry]:
    """Returns all configs of the resource. Raises Refusal if it does not exist."""
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
            return describe_broker_configs(context.config, _actual_values(context))
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


def _actual_values(context: Context) -> dict[str, str]:
    """Returns configs whose actual value can differ from the properties: id, directories, ports set by the system."""
    config = context.config
    values = {
        "broker.id": str(context.broker_id),
        "log.dirs": ",".join(context.log_dirs.gates),
    }
    broker = context.controller.image.brokers.get(context.broker_id)
    if broker is not None and not config.advertised_listeners:
        bound = {endpoint.name: endpoint.port for endpoint in broker.endpoints}
        endpoints = [
            endpoint._replace(port=endpoint.port or bound.get(endpoint.name, 0)) for endpoint in config.endpoints
        ]
        values["listeners"] = ",".join(map(str, endpoints))
    return values
