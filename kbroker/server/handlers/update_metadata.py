"""UpdateMetadata (6), v0-8: the controller sends brokers, topics and leaders, which Metadata then returns to clients.

Served in a cluster only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.protocol.messages import update_metadata as messages
from kbroker.server.access.between_brokers import member_of

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]


async def handle(context: Context, request: Request) -> Any:
    await member_of(context, request).control_requests.update_metadata(request.body)
    return messages.RESPONSE()
