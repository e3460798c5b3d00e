"""What the handlers of commits share, plain or in a transaction: answers for partitions that cannot be committed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kbroker.protocol.error_codes import ErrorCode
from kbroker.server.authorization import Operation
from kbroker.server.permissions import allows_topic

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["leave_out_what_cannot_be", "refuse_rest", "refuse_these"]


def refuse_rest(response: Any, code: int) -> Any:
    """All that have no error yet."""
    for topic in response.topics:
        for each in topic.partitions:
            each.error_code = each.error_code or code
    return response


def refuse_these(response: Any, refused: Mapping[tuple[str, int], ErrorCode]) -> None:
    for topic in response.topics:
        for each in topic.partitions:
            each.error_code = refused.get((topic.name, each.partition_index), each.error_code)


def leave_out_what_cannot_be(context: Context, request: Request, response: Any) -> None:
    """Partitions that are not there, or not this client's, get their error here and go no further."""
    image = context.controller.image
    kept = []
    for topic, answer in zip(request.body.topics, response.topics, strict=True):
        known = image.topic(topic.name)
        count = 0 if known is None else len(known.partitions)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not allows_topic(context, request, Operation.READ, topic.name):
            count, code = 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if any(not 0 <= each.partition_index < count for each in topic.partitions):
            for each in answer.partitions:
                if not 0 <= each.partition_index < count:
                    each.error_code = code
            topic.partitions = [each for each in topic.partitions if 0 <= each.partition_index < count]
        if topic.partitions:
            kept.append(topic)
    request.body.topics = kept
