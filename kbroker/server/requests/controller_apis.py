"""APIs that only the controller serves. Other brokers answer NOT_CONTROLLER; clients find the controller in Metadata.

As in Kafka with ZooKeeper, configs, quotas and ACLs are not among them: any broker may write them.

Each request is answered within its timeout, also while ZooKeeper does not answer or an earlier request keeps the
controller busy.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

import trio

from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.server.access.permissions import allows_cluster

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Handler, Request

__all__ = ["CONTROLLER_APIS", "only_on_controller"]

CONTROLLER_APIS: Final[Mapping[int, AclOperation | None]] = {
    7: AclOperation.CLUSTER_ACTION,  # ControlledShutdown
    19: None,  # CreateTopics
    20: None,  # DeleteTopics
    37: None,  # CreatePartitions
    43: AclOperation.ALTER,  # ElectLeaders
    45: AclOperation.ALTER,  # AlterPartitionReassignments
    46: AclOperation.DESCRIBE,  # ListPartitionReassignments
    51: None,  # AlterUserScramCredentials
    56: AclOperation.CLUSTER_ACTION,  # AlterPartition
    57: AclOperation.ALTER,  # UpdateFeatures
    67: AclOperation.CLUSTER_ACTION,  # AllocateProducerIds
}
"""API -> operation on the cluster that comes first: a client without it gets the refusal of the handler.

None: as in Kafka, all clients get NOT_CONTROLLER. Envelope (58) checks by itself, because its listener comes first.
"""


_SHORTEST_MS: Final = 1000
"""Clients that do not want to wait for the other brokers send a timeout of 0. They still want to know the outcome."""


def only_on_controller(handler: Handler, operation: AclOperation | None) -> Handler:
    def handle(context: Context, request: Request) -> Any:
        if operation is None or allows_cluster(context, request, operation, quiet=True):
            context.controller.store.check_active()
        answering = handler(context, request)
        return _in_time(context, request, answering) if answering.__class__ is CoroutineType else answering

    return handle


async def _in_time(context: Context, request: Request, answering: Coroutine[Any, Any, Any]) -> Any:
    """Returns the answer, or None if the request has got REQUEST_TIMED_OUT before.

    A request that waits for its turn is then dropped. One that has begun to write is finished.
    """
    scope = trio.CancelScope()

    def give_up() -> None:
        scope.cancel()
        request.fail(Refusal(ErrorCode.REQUEST_TIMED_OUT, "The controller did not answer in time."))

    deadline = context.deadlines.add(_timeout_ms(context, request) / 1000, give_up)
    try:
        with scope:
            answer = await answering
    finally:
        deadline.cancel()
    return None if scope.cancel_called else answer


def _timeout_ms(context: Context, request: Request) -> int:
    named: int = getattr(request.body, "timeout_ms", context.config.request_timeout_ms)
    return max(named, _SHORTEST_MS)
