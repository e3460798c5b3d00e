"""JoinGroup (11), v0-9: adds a member to a classic group; responds when the next generation begins.

v0: the session timeout is the rebalance timeout too. v4: a dynamic member without an id first gets one
(MEMBER_ID_REQUIRED, KIP-394). v5: static members (KIP-345).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.coordinator.pending_response import PendingResponse
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.messages import join_group as messages
from kbroker.server.coordinators.group_requests import find_shard

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

NULL_PROTOCOL_SINCE: Final = 7


def handle(context: Context, request: Request) -> None:
    body = request.body
    driver = find_shard(context, request, AclOperation.READ, body.group_id, needs_id=True)

    def reply(response: Any) -> None:
        if response.protocol_name is None and request.version < NULL_PROTOCOL_SINCE:
            response.protocol_name = ""
        request.reply(response)

    pending = PendingResponse(reply, lambda code: request.reply(refuse(request, code, None)))
    client_host = f"/{request.client_host}"  # as Java prints an InetAddress: tools show it
    result = driver.shard.join(body, request.version, request.client_id or "", client_host, pending, driver.now())
    driver.apply(body.group_id, result)


def refuse(request: Request, code: int, message: str | None) -> Any:
    name = None if request.version >= NULL_PROTOCOL_SINCE else ""
    return messages.RESPONSE(error_code=code, member_id=request.body.member_id, protocol_name=name)
