"""Functions of the OffsetCommit and TxnOffsetCommit handlers: errors of single partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.server.access.permissions import allows_topic

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = [
    "CommitResponseTypes",
    "commit_response",
    "refuse_partitions",
    "refuse_rest",
    "refuse_unknown_and_unauthorized",
]


class CommitResponseTypes(NamedTuple):
    """Types of OffsetCommit's or TxnOffsetCommit's response: their fields have the same names."""

    response: Any
    topic: Any
    partition: Any


def commit_response(request: Request, code: int, types: CommitResponseTypes) -> Any:
    """Returns a response with the same error code for every partition of the request."""
    response, topic_type, partition_type = types
    return response(
        topics=[
            topic_type(
                name=topic.name,
                partitions=[
                    partition_type(partition_index=partition.partition_index, error_code=code)
                    for partition in topic.partitions
                ],
            )
            for topic in request.body.topics
        ]
    )


def refuse_rest(response: Any, code: int) -> Any:
    """Sets the error code of all partitions that have none yet."""
    for topic in response.topics:
        for partition in topic.partitions:
            partition.error_code = partition.error_code or code
    return response


def refuse_partitions(response: Any, refused: Mapping[tuple[str, int], ErrorCode]) -> None:
    for topic in response.topics:
        for partition in topic.partitions:
            partition.error_code = refused.get((topic.name, partition.partition_index), partition.error_code)


def refuse_unknown_and_unauthorized(context: Context, request: Request, response: Any) -> None:
    """Sets the errors of unknown and unauthorized partitions, and removes these partitions from the request."""
    image = context.controller.image
    kept = []
    for topic, topic_response in zip(request.body.topics, response.topics, strict=True):
        known = image.topic(topic.name)
        count = 0 if known is None else len(known.partitions)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not allows_topic(context, request, AclOperation.READ, topic.name):
            count, code = 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if any(not 0 <= partition.partition_index < count for partition in topic.partitions):
            for partition in topic_response.partitions:
                if not 0 <= partition.partition_index < count:
                    partition.error_code = code
            topic.partitions = [partition for partition in topic.partitions if 0 <= partition.partition_index < count]
        if topic.partitions:
            kept.append(topic)
    request.body.topics = kept
