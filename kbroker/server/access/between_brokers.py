"""Authorization of requests between brokers (CLUSTER_ACTION)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.server.access.permissions import allows_cluster

if TYPE_CHECKING:
    from kbroker.controller.cluster.cluster_member import ClusterMember
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["member_of"]


def member_of(context: Context, request: Request) -> ClusterMember:
    """Returns this broker's cluster membership. Raises Refusal if the sender is not authorized."""
    assert context.member is not None, "dispatch serves these only in a cluster"
    if not allows_cluster(context, request, AclOperation.CLUSTER_ACTION):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return context.member
