"""Operations that a client is authorized for, on a topic, a group or the cluster, as a bit set (KIP-430)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kbroker.protocol.acl_codes import AclOperation
from kbroker.server.access.permissions import allows_cluster, allows_group, allows_topic

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["cluster_operations", "group_operations", "topic_operations"]

_TOPIC_OPERATIONS: Final = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
_GROUP_OPERATIONS: Final = (
    AclOperation.READ,
    AclOperation.DESCRIBE,
    AclOperation.DELETE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
_CLUSTER_OPERATIONS: Final = (
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
    AclOperation.IDEMPOTENT_WRITE,
)


def topic_operations(context: Context, request: Request, name: str) -> int:
    return sum(
        1 << operation for operation in _TOPIC_OPERATIONS if allows_topic(context, request, operation, name, quiet=True)
    )


def group_operations(context: Context, request: Request, group_id: str) -> int:
    return sum(
        1 << operation
        for operation in _GROUP_OPERATIONS
        if allows_group(context, request, operation, group_id, quiet=True)
    )


def cluster_operations(context: Context, request: Request) -> int:
    """Returns the bits; 0 for a client that may not describe the cluster, as in Kafka."""
    if not allows_cluster(context, request, AclOperation.DESCRIBE, quiet=True):
        return 0
    return sum(
        1 << operation for operation in _CLUSTER_OPERATIONS if allows_cluster(context, request, operation, quiet=True)
    )
