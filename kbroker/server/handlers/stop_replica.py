"""StopReplica (5), v0-4: the controller tells this broker that replicas are to stop, and perhaps to go.

Only in a cluster. Replicas of deleted topics go here; those that move elsewhere go when their states say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.protocol.messages import stop_replica as messages
from kbroker.server.between_brokers import member_of

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle"]


async def handle(context: Context, request: Request) -> Any:
    named = await member_of(context, request).inbox.stop_replica(request.body)
    return messages.RESPONSE(
        partition_errors=[
            messages.StopReplicaPartitionError(topic_name=name, partition_index=index) for name, index in named
        ]
    )
