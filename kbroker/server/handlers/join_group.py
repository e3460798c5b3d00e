"""JoinGroup (11), v0-9: a member asks to be in the next generation, and is answered when that begins.

v0: one timeout for session and rebalance. v4: a dynamic member without an id is given one first. v5: static members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.coordinator.ticket import Ticket
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import join_group as messages
from kbroker.server.authorization import Operation
from kbroker.server.group_requests import find_shard

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]

NULL_PROTOCOL_SINCE: Final = 7


def handle(context: Context, request: Request) -> None:
    body = request.body
    if not body.group_id:
        raise Refusal(ErrorCode.INVALID_GROUP_ID)
    driver = find_shard(context, request, Operation.READ, body.group_id)

    def reply(response: Any) -> None:
        if response.protocol_name is None and request.version < NULL_PROTOCOL_SINCE:
            response.protocol_name = ""
        request.reply(response)

    ticket = Ticket(reply, lambda code: request.reply(refuse(request, code, None)))
    client_host = f"/{request.client_host}"  # as Java prints an address, for the tools that show it
    step = driver.shard.join(body, request.version, request.client_id or "", client_host, ticket, driver.now())
    driver.take(body.group_id, step)


def refuse(request: Request, code: int, message: str | None) -> Any:
    name = None if request.version >= NULL_PROTOCOL_SINCE else ""
    return messages.RESPONSE(error_code=code, member_id=request.body.member_id, protocol_name=name)
