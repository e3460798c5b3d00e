"""OffsetDelete (47), v0: forget committed offsets of topics that no member of the group reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import offset_delete as messages
from kbroker.server.authorization import Operation
from kbroker.server.group_requests import find_shard, group_ticket
from kbroker.server.permissions import allows_topic

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]


def handle(context: Context, request: Request) -> None:
    body = request.body
    if not body.group_id:
        raise Refusal(ErrorCode.INVALID_GROUP_ID)
    driver = find_shard(context, request, Operation.DELETE, body.group_id)
    refused: dict[tuple[str, int], ErrorCode] = {}
    wanted = []
    for topic in body.topics:
        code = None if allows_topic(context, request, Operation.READ, topic.name) else _UNAUTHORIZED
        for each in topic.partitions:
            partition = (topic.name, each.partition_index)
            if code is None and context.controller.image.partition(*partition) is not None:
                wanted.append(partition)
            else:
                refused[partition] = code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    records, not_now = driver.shard.delete_offsets(body.group_id, wanted)
    refused |= not_now
    if records and (failed := driver.append(records)):
        raise Refusal(failed)
    topics = [
        messages.OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[
                messages.OffsetDeleteResponsePartition(
                    partition_index=each.partition_index,
                    error_code=refused.get((topic.name, each.partition_index), ErrorCode.NONE),
                )
                for each in topic.partitions
            ],
        )
        for topic in body.topics
    ]
    driver.answer(group_ticket(request, refuse), messages.RESPONSE(topics=topics))


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(error_code=code)


_UNAUTHORIZED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
