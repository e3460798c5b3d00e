"""LeaveGroup (13), v0-5: removes members from a classic group, so that it rebalances before their sessions expire.

v0-2: one member; its error is the top-level error. v3: a list of members; an admin client may name static members by
their instance id only (KIP-345).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.coordinator.pending_response import PendingResponse
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.messages import leave_group as messages
from kbroker.server.coordinators.group_requests import find_shard

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]

LIST_SINCE: Final = 3


def handle(context: Context, request: Request) -> None:
    body = request.body
    driver = find_shard(context, request, AclOperation.READ, body.group_id, needs_id=True)
    is_list = request.version >= LIST_SINCE
    if is_list:
        leaving = [(member.member_id, member.group_instance_id) for member in body.members]
    else:
        leaving = [(body.member_id, None)]

    def reply(response: Any) -> None:
        if not is_list:
            response.error_code = response.members[0].error_code
        request.reply(response)

    pending = PendingResponse(reply, lambda code: request.reply(messages.RESPONSE(error_code=code)))
    driver.apply(body.group_id, driver.shard.leave(body.group_id, leaving, pending, driver.now()))
