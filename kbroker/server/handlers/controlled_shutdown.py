"""ControlledShutdown (7), v0-3: moves leadership away from a broker that is about to stop.

Served in a cluster only. Responds with the partitions that no other broker can lead. v2: the broker epoch, which fences
requests of an earlier incarnation (KIP-380).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.protocol.messages import controlled_shutdown as messages
from kbroker.server.access.between_brokers import member_of

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]


async def handle(context: Context, request: Request) -> Any:
    member_of(context, request)
    remaining = await context.controller.shut_down(request.body.broker_id, broker_epoch=request.body.broker_epoch)
    return messages.RESPONSE(
        remaining_partitions=[
            messages.RemainingPartition(topic_name=name, partition_index=index) for name, index in remaining
        ]
    )
