"""LeaveGroup (13), v0-5: members go, and the others rebalance without waiting for a session to end.

v0 to v2: one member, its outcome at the top. v3: a list; an admin may name static members by instance id alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.coordinator.ticket import Ticket
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import leave_group as messages
from kbroker.server.authorization import Operation
from kbroker.server.group_requests import find_shard

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle"]

LIST_SINCE: Final = 3


def handle(context: Context, request: Request) -> None:
    body = request.body
    if not body.group_id:
        raise Refusal(ErrorCode.INVALID_GROUP_ID)
    driver = find_shard(context, request, Operation.READ, body.group_id)
    is_list = request.version >= LIST_SINCE
    if is_list:
        leaving = [(each.member_id, each.group_instance_id) for each in body.members]
    else:
        leaving = [(body.member_id, None)]

    def reply(response: Any) -> None:
        if not is_list:
            response.error_code = response.members[0].error_code
        request.reply(response)

    ticket = Ticket(reply, lambda code: request.reply(messages.RESPONSE(error_code=code)))
    driver.take(body.group_id, driver.shard.leave(body.group_id, leaving, ticket, driver.now()))
