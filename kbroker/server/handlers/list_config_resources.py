"""ListConfigResources (74), v0-1: lists resources that have configs.

v0: client metrics subscriptions (KIP-714). v1: resources of the requested types; an empty list of types means all
(KIP-1142). Groups and client metrics are listed if they have configs, topics and brokers always.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.config.resources import ConfigResourceType
from kbroker.controller.config_entities import split_entity_path
from kbroker.controller.image import Image
from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import list_config_resources as messages
from kbroker.server.access.permissions import allows_cluster

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]

ALL_TYPES_SINCE = 1


def handle(context: Context, request: Request) -> Any:
    if not allows_cluster(context, request, AclOperation.DESCRIBE_CONFIGS):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    image = context.controller.image
    return messages.RESPONSE(
        config_resources=[
            messages.ConfigResource(resource_name=name, resource_type=kind)
            for kind in _types(request)
            for name in _names(image, kind)
        ]
    )


def _types(request: Request) -> list[ConfigResourceType]:
    if request.version < ALL_TYPES_SINCE:
        return [ConfigResourceType.CLIENT_METRICS]
    try:
        return [ConfigResourceType(number) for number in request.body.resource_types] or list(ConfigResourceType)
    except ValueError:
        raise Refusal(ErrorCode.UNSUPPORTED_VERSION) from None


def _names(image: Image, kind: ConfigResourceType) -> list[str]:
    match kind:
        case ConfigResourceType.TOPIC:
            return list(image.topics)
        case ConfigResourceType.BROKER | ConfigResourceType.BROKER_LOGGER:
            return [str(broker_id) for broker_id in image.brokers]
        case ConfigResourceType.GROUP:
            return _entities(image, "groups/")
        case ConfigResourceType.CLIENT_METRICS:
            return _entities(image, "client-metrics/")


def _entities(image: Image, prefix: str) -> list[str]:
    return [split_entity_path(entity)[0][1] or "" for entity in image.entity_configs if entity.startswith(prefix)]
