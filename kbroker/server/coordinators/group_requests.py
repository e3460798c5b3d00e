"""Functions of the group handlers: pending responses, authorization, and the shard of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kbroker.coordinator.pending_response import PendingResponse
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.server.access.authorization import AclOperation, ResourceType

if TYPE_CHECKING:
    from kbroker.coordinator.shard_driver import ShardDriver
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["allows_group", "answer_after", "find_shard", "group_operations", "pending_response"]

_GROUP_OPERATIONS: Final = (
    AclOperation.READ,
    AclOperation.DESCRIBE,
    AclOperation.DELETE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)


def pending_response(request: Request, refuse: Callable[[Request, int, str | None], Any]) -> PendingResponse:
    return PendingResponse(request.reply, lambda code: request.reply(refuse(request, code, None)))


def answer_after(drivers: Sequence[ShardDriver], pending: PendingResponse, response: Any) -> None:
    """Sends the response once all records that these shards have now are committed."""
    if drivers:
        again = partial(answer_after, drivers[1:], pending)
        drivers[0].log.answer(PendingResponse(again, pending.refuse), response)
    else:
        pending.reply(response)


def allows_group(context: Context, request: Request, operation: AclOperation, group_id: str) -> bool:
    authorizer = context.authorizer
    return authorizer.allows_all or authorizer.allows(
        request.principal, request.client_host, operation, ResourceType.GROUP, group_id
    )


def group_operations(context: Context, request: Request, group_id: str) -> int:
    """Returns the operations that the client is authorized for, as a bit field (KIP-430)."""
    return sum(1 << operation for operation in _GROUP_OPERATIONS if allows_group(context, request, operation, group_id))


def find_shard(context: Context, request: Request, operation: AclOperation, group_id: str) -> ShardDriver:
    """Returns the shard of a group, with all earlier commits written.

    Raises Refusal if the client is not authorized, or this broker does not coordinate the group.
    """
    if not allows_group(context, request, operation, group_id):
        raise Refusal(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    driver = context.groups.shards.find(group_id)
    driver.flush()
    return driver
