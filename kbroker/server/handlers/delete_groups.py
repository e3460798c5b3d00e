"""DeleteGroups (42), v0-2: groups without members go, with all their offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import delete_groups as messages
from kbroker.server.authorization import Operation
from kbroker.server.group_requests import answer_after, find_shard, group_ticket

if TYPE_CHECKING:
    from kbroker.coordinator.shard_driver import ShardDriver
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]


def handle(context: Context, request: Request) -> None:
    drivers: dict[ShardDriver, None] = {}
    results = []
    for group_id in dict.fromkeys(request.body.groups_names):
        code: int = ErrorCode.NONE
        try:
            driver = find_shard(context, request, Operation.DELETE, group_id)
            drivers[driver] = None
            code = driver.append(driver.shard.delete(group_id))
        except Refusal as refusal:
            code = refusal.code
        results.append(messages.DeletableGroupResult(group_id=group_id, error_code=code))
    answer_after(list(drivers), group_ticket(request, refuse), messages.RESPONSE(results=results))


def refuse(request: Request, code: int, message: str | None) -> Any:
    names = dict.fromkeys(request.body.groups_names)
    return messages.RESPONSE(results=[messages.DeletableGroupResult(group_id=each, error_code=code) for each in names])
