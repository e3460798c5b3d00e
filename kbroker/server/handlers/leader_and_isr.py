"""LeaderAndIsr (4), v0-7: the controller sends the partitions that this broker leads and follows.

Served in a cluster only. The states go into the metadata image; replicas follow the image. v5: topics with ids
(KIP-516).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.protocol.messages import leader_and_isr as messages
from kbroker.server.access.between_brokers import member_of

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

TOPICS_SINCE: Final = 5


async def handle(context: Context, request: Request) -> Any:
    member = member_of(context, request)
    codes = await member.control_requests.leader_and_isr(request.body)
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
                        partition_index=partition.partition_index,
                        error_code=codes[topic.topic_name, partition.partition_index],
                    )
                    for partition in topic.partition_states
                ],
            )
            for topic in request.body.topic_states
        ]
    )


def refuse(request: Request, code: int, message: str | None) -> Any:
    body = request.body
    if request.version >= TOPICS_SINCE:
        topics = [
            messages.LeaderAndIsrTopicError(
                topic_id=topic.topic_id,
                partition_errors=[_error(topic.topic_name, state, code) for state in topic.partition_states],
            )
            for topic in body.topic_states
        ]
        return messages.RESPONSE(error_code=code, topics=topics)
    errors = [_error(state.topic_name, state, code) for state in body.ungrouped_partition_states]
    errors += [_error(topic.topic_name, state, code) for topic in body.topic_states for state in topic.partition_states]
    return messages.RESPONSE(error_code=code, partition_errors=errors)


def _error(name: str, state: Any, code: int) -> Any:
    return messages.LeaderAndIsrPartitionError(topic_name=name, partition_index=state.partition_index, error_code=code)
