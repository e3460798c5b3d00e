"""SyncGroup (14), v0-5: the leader of a classic group sends the assignment; the other members wait for theirs.

v5: the protocol type and name, so that a client with another protocol does not misread the assignment (KIP-559).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import sync_group as messages
from kbroker.server.coordinators.group_requests import find_shard, pending_response

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

PROTOCOL_SINCE: Final = 5


def handle(context: Context, request: Request) -> None:
    body = request.body
    if request.version >= PROTOCOL_SINCE and (body.protocol_type is None or body.protocol_name is None):
        raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    driver = find_shard(context, request, AclOperation.READ, body.group_id, needs_id=True)
    driver.apply(body.group_id, driver.shard.sync(body, pending_response(request, refuse), driver.now()))


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(error_code=code)
