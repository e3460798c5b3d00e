"""What a client may do, as a set of bits (KIP-430): of a topic, or of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kbroker.server.authorization import Operation
from kbroker.server.permissions import allows_cluster, allows_topic

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["cluster_operations", "topic_operations"]

_OF_TOPICS: Final = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
_OF_THE_CLUSTER: Final = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)


def topic_operations(context: Context, request: Request, name: str) -> int:
    return sum(1 << each for each in _OF_TOPICS if allows_topic(context, request, each, name))


def cluster_operations(context: Context, request: Request) -> int:
    """Whoever may not describe the cluster is not told either what else they may do."""
    if not allows_cluster(context, request, Operation.DESCRIBE):
        return 0
    return sum(1 << each for each in _OF_THE_CLUSTER if allows_cluster(context, request, each))
