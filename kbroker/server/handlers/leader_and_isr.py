"""LeaderAndIsr (4), v0-7: the controller tells this broker which partitions it leads and follows.

Only in a cluster. What it tells becomes the image, and whoever holds partitions follows that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.protocol.messages import leader_and_isr as messages
from kbroker.server.between_brokers import member_of

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle"]

TOPICS_SINCE: Final = 5


async def handle(context: Context, request: Request) -> Any:
    member = member_of(context, request)
    codes = await member.inbox.leader_and_isr(request.body)
    if request.version < TOPICS_SINCE:
        return messages.RESPONSE(
            partition_errors=[
                messages.LeaderAndIsrPartitionError(topic_name=name, partition_index=index, error_code=code)
                for (name, index), code in codes.items()
            ]
        )
    return messages.RESPONSE(
        topics=[
            messages.LeaderAndIsrTopicError(
                topic_id=topic.topic_id,
                partition_errors=[
                    messages.LeaderAndIsrPartitionError(
                        partition_index=each.partition_index, error_code=codes[topic.topic_name, each.partition_index]
                    )
                    for each in topic.partition_states
                ],
            )
            for topic in request.body.topic_states
        ]
    )
