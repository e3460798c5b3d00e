"""DeleteGroups (42), v0-2: deletes groups that have no members, with all their offsets (KIP-229).

Responds when the deletions are committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import delete_groups as messages
from kbroker.server.coordinators.group_requests import answer_after, find_shard, pending_response
from kbroker.time_slice import respond_once_in_slices

if TYPE_CHECKING:
    from kbroker.coordinator.shard_driver import ShardDriver
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]


def handle(context: Context, request: Request) -> Any:
    drivers: dict[ShardDriver, None] = {}

    def delete(group_id: str) -> Any:
        code: int = ErrorCode.NONE
        try:
            driver = find_shard(context, request, AclOperation.DELETE, group_id)
            drivers[driver] = None
            code = driver.log.append(driver.shard.delete(group_id))
        except Refusal as refusal:
            code = refusal.code
        return messages.DeletableGroupResult(group_id=group_id, error_code=code)

    def respond(results: list[Any]) -> None:
        answer_after(list(drivers), pending_response(request, refuse), messages.RESPONSE(results=results))

    return respond_once_in_slices(context.clock, delete, request.body.groups_names, respond)


def refuse(request: Request, code: int, message: str | None) -> Any:
    names = dict.fromkeys(request.body.groups_names)
    return messages.RESPONSE(results=[messages.DeletableGroupResult(group_id=name, error_code=code) for name in names])
