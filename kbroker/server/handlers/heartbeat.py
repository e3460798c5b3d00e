"""Heartbeat (12), v0-4: a member is alive, and learns of a rebalance. Changes nothing in the log, so nothing waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import heartbeat as messages
from kbroker.server.authorization import Operation
from kbroker.server.group_requests import find_shard

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle"]

_Response = messages.RESPONSE.value
_quiet: dict[int, bytes] = {}  # by version: the answer to nearly every heartbeat


def handle(context: Context, request: Request) -> Any:
    body = request.body
    if not body.group_id:
        raise Refusal(ErrorCode.INVALID_GROUP_ID)
    try:
        driver = find_shard(context, request, Operation.READ, body.group_id)
    except Refusal as refusal:
        if refusal.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return _Response()  # its session begins when the group is loaded
        raise
    code = driver.shard.heartbeat(body, driver.now())
    if code or request.route.quotas is not None:
        return _Response(error_code=code)
    version = request.route.version
    encoded = _quiet.get(version)
    if encoded is None:
        encoded = _quiet[version] = request.encode(_Response())
    request.reply_encoded(encoded)
    return None
