"""UpdateMetadata (6), v0-8: the controller tells this broker what to tell clients: brokers, topics, leaders.

Only in a cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.protocol.messages import update_metadata as messages
from kbroker.server.between_brokers import member_of

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle"]


async def handle(context: Context, request: Request) -> Any:
    await member_of(context, request).inbox.update_metadata(request.body)
    return messages.RESPONSE()
