"""SyncGroup (14), v0-5: the leader brings the assignment, everybody else waits for it.

v5: whoever syncs says by which protocol, so that a client with the wrong one does not misread its bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import sync_group as messages
from kbroker.server.authorization import Operation
from kbroker.server.group_requests import find_shard, group_ticket

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]

PROTOCOL_SINCE: Final = 5


def handle(context: Context, request: Request) -> None:
    body = request.body
    if not body.group_id:
        raise Refusal(ErrorCode.INVALID_GROUP_ID)
    if request.version >= PROTOCOL_SINCE and (body.protocol_type is None or body.protocol_name is None):
        raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    driver = find_shard(context, request, Operation.READ, body.group_id)
    driver.take(body.group_id, driver.shard.sync(body, group_ticket(request, refuse), driver.now()))


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(error_code=code)
