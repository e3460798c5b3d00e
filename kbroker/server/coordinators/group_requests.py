"""Functions of the group handlers: pending responses, authorization, and the shard of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.coordinator.pending_response import PendingResponse
from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.server.access.permissions import allows_group

if TYPE_CHECKING:
    from kbroker.coordinator.shard_driver import ShardDriver
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["answer_after", "find_shard", "pending_response"]


def pending_response(request: Request, refuse: Callable[[Request, int, str | None], Any]) -> PendingResponse:
    return PendingResponse(request.reply, lambda code: request.reply(refuse(request, code, None)))


def answer_after(drivers: Sequence[ShardDriver], pending: PendingResponse, response: Any) -> None:
    """Sends the response once all records that these shards have now are committed."""
    if drivers:
        again = partial(answer_after, drivers[1:], pending)
        drivers[0].log.answer(PendingResponse(again, pending.refuse), response)
    else:
        pending.reply(response)


def find_shard(
    context: Context, request: Request, operation: AclOperation, group_id: str, *, needs_id: bool = False
) -> ShardDriver:
    """Returns the shard of a group, with all earlier commits written.

    Raises Refusal if the client is not authorized, if `needs_id` and the id is empty, or if this broker does not
    coordinate the group.
    """
    if not allows_group(context, request, operation, group_id):
        raise Refusal(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if needs_id and not group_id:
        raise Refusal(ErrorCode.INVALID_GROUP_ID)
    driver = context.groups.shards.find(group_id)
    driver.flush()
    return driver
