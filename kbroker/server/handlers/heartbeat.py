"""Heartbeat (12), v0-4: keeps a member of a classic group alive, and reports a rebalance by an error code.

Writes no records, so the response never waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import heartbeat as messages
from kbroker.server.coordinators.group_requests import find_shard

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]

_Response = messages.RESPONSE.value
_success: dict[int, bytes] = {}  # encoded response without an error, by version: nearly all heartbeats get it


def handle(context: Context, request: Request) -> Any:
    body = request.body
    try:
        driver = find_shard(context, request, AclOperation.READ, body.group_id, needs_id=True)
    except Refusal as refusal:
        if refusal.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return _Response()  # as in Apache Kafka: sessions begin when the group is loaded
        raise
    code = driver.shard.heartbeat(body, driver.now())
    if code or request.route.quotas is not None:
        return _Response(error_code=code)
    version = request.route.version
    encoded = _success.get(version)
    if encoded is None:
        encoded = _success[version] = request.encode(_Response())
    request.reply_encoded(encoded)
    return None
