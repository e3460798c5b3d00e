"""OffsetDelete (47), v0: deletes committed offsets of topics that no member of the group subscribes to (KIP-496)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import offset_delete as messages
from kbroker.server.access.permissions import allows_topic
from kbroker.server.coordinators.group_requests import find_shard, pending_response

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]


def handle(context: Context, request: Request) -> None:
    body = request.body
    driver = find_shard(context, request, AclOperation.DELETE, body.group_id, needs_id=True)
    refused: dict[tuple[str, int], ErrorCode] = {}
    existing = []
    for topic in body.topics:
        code = None if allows_topic(context, request, AclOperation.READ, topic.name) else _UNAUTHORIZED
        for partition in topic.partitions:
            key = (topic.name, partition.partition_index)
            if code is None and context.controller.image.partition(*key) is not None:
                existing.append(key)
            else:
                refused[key] = code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    records, subscribed = driver.shard.offsets.delete(body.group_id, existing)
    refused |= subscribed
    if records and (failed := driver.log.append(records)):
        raise Refusal(failed)
    topics = [
        messages.OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[
                messages.OffsetDeleteResponsePartition(
                    partition_index=partition.partition_index,
                    error_code=refused.get((topic.name, partition.partition_index), ErrorCode.NONE),
                )
                for partition in topic.partitions
            ],
        )
        for topic in body.topics
    ]
    driver.log.answer(pending_response(request, refuse), messages.RESPONSE(topics=topics))


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(error_code=code)


_UNAUTHORIZED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
