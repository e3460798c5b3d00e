"""What the handlers of groups share: the way back for an answer that comes later, and the questions of permission."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kbroker.coordinator.ticket import Ticket
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.server.authorization import Operation, ResourceType

if TYPE_CHECKING:
    from kbroker.coordinator.shard_driver import ShardDriver
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["allows_group", "answer_after", "find_shard", "group_operations", "group_ticket"]

_OF_GROUPS: Final = (
    Operation.READ,
    Operation.DESCRIBE,
    Operation.DELETE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)


def group_ticket(request: Request, refuse: Callable[[Request, int, str | None], Any]) -> Ticket:
    return Ticket(request.reply, lambda code: request.reply(refuse(request, code, None)))


def answer_after(drivers: Sequence[ShardDriver], ticket: Ticket, response: Any) -> None:
    """When everything is committed that these shards had at this moment."""
    if drivers:
        again = partial(answer_after, drivers[1:], ticket)
        drivers[0].answer(Ticket(again, ticket.refuse), response)
    else:
        ticket.reply(response)


def allows_group(context: Context, request: Request, operation: Operation, group_id: str) -> bool:
    authorizer = context.authorizer
    return authorizer.allows_all or authorizer.allows(
        request.principal, request.client_host, operation, ResourceType.GROUP, group_id
    )


def group_operations(context: Context, request: Request, group_id: str) -> int:
    """What the client may do with a group, as a set of bits (KIP-430)."""
    return sum(1 << each for each in _OF_GROUPS if allows_group(context, request, each, group_id))


def find_shard(context: Context, request: Request, operation: Operation, group_id: str) -> ShardDriver:
    """The shard of a group that the client may use, with every commit before this in it."""
    if not allows_group(context, request, operation, group_id):
        raise Refusal(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    driver = context.groups.find(group_id)
    driver.flush()
    return driver
