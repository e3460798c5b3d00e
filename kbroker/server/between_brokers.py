"""Requests that brokers send each other: who may send them, and that there is a cluster at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.server.authorization import Operation
from kbroker.server.permissions import allows_cluster

if TYPE_CHECKING:
    from kbroker.controller.cluster_member import ClusterMember
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["member_of"]


def member_of(context: Context, request: Request) -> ClusterMember:
    assert context.member is not None, "dispatch serves these only in a cluster"
    if not allows_cluster(context, request, Operation.CLUSTER_ACTION):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return context.member
