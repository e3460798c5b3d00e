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

__all__ = ["handle", "refuse"]


async def handle(context: Context, request: Request) -> Any:
    stopped = await member_of(context, request).control_requests.stop_replica(request.body)
    return messages.RESPONSE(
        partition_errors=[
            messages.StopReplicaPartitionError(topic_name=name, partition_index=index) for name, index in stopped
        ]
    )


def refuse(request: Request, code: int, message: str | None) -> Any:
    body = request.body
    named = [(partition.topic_name, partition.partition_index) for partition in body.ungrouped_partitions]
    named += [(topic.name, index) for topic in body.topics for index in topic.partition_indexes]
    named += [
        (topic.topic_name, state.partition_index) for topic in body.topic_states for state in topic.partition_states
    ]
    errors = [
        messages.StopReplicaPartitionError(topic_name=name, partition_index=index, error_code=code)
        for name, index in named
    ]
    return messages.RESPONSE(error_code=code, partition_errors=errors)
