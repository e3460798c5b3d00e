"""StopReplica (5), v0-4: the controller stops replicas on this broker, and optionally deletes them.

Served in a cluster only. Only replicas of deleted topics are deleted here; reassigned replicas are deleted when the
metadata image says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.protocol.messages import stop_replica as messages
from kbroker.server.access.between_brokers import member_of

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]


async def handle(context: Context, request: Request) -> Any:
    stopped = await member_of(context, request).control_requests.stop_replica(request.body)
    return messages.RESPONSE(
        partition_errors=[
            messages.StopReplicaPartitionError(topic_name=name, partition_index=index) for name, index in stopped
        ]
    )
