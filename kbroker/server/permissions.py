"""The questions that handlers put to the authorizer, with the request's principal and address filled in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kbroker.server.authorization import Operation, ResourceType

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["CLUSTER_NAME", "allows_cluster", "allows_topic", "allows_transactional_id"]

CLUSTER_NAME: Final = "kafka-cluster"


def allows_topic(context: Context, request: Request, operation: Operation, name: str) -> bool:
    return _allows(context, request, operation, ResourceType.TOPIC, name)


def allows_cluster(context: Context, request: Request, operation: Operation) -> bool:
    return _allows(context, request, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def allows_transactional_id(context: Context, request: Request, operation: Operation, transactional_id: str) -> bool:
    return _allows(context, request, operation, ResourceType.TRANSACTIONAL_ID, transactional_id)


def _allows(context: Context, request: Request, operation: Operation, resource: ResourceType, name: str) -> bool:
    authorizer = context.authorizer
    return authorizer.allows_all or authorizer.allows(request.principal, request.client_host, operation, resource, name)
