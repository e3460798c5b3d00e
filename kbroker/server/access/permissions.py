"""Checks of handlers: ask the authorizer for the principal and host of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kbroker.server.access.authorization import AclOperation, ResourceType

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["CLUSTER_NAME", "allows_cluster", "allows_topic", "allows_transactional_id"]

CLUSTER_NAME: Final = "kafka-cluster"


def allows_topic(context: Context, request: Request, operation: AclOperation, name: str) -> bool:
    return _allows(context, request, operation, ResourceType.TOPIC, name)


def allows_cluster(context: Context, request: Request, operation: AclOperation) -> bool:
    return _allows(context, request, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def allows_transactional_id(context: Context, request: Request, operation: AclOperation, transactional_id: str) -> bool:
    return _allows(context, request, operation, ResourceType.TRANSACTIONAL_ID, transactional_id)


def _allows(context: Context, request: Request, operation: AclOperation, resource: ResourceType, name: str) -> bool:
    authorizer = context.authorizer
    return authorizer.allows_all or authorizer.allows(request.principal, request.client_host, operation, resource, name)
