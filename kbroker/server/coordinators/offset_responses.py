"""Functions of the OffsetCommit and TxnOffsetCommit handlers: errors of single partitions."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.server.access.permissions import allows_topic

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = [
    "CommitResponseTypes",
    "check_topics",
    "commit_response",
    "refuse_partitions",
    "refuse_rest",
]


class CommitResponseTypes(NamedTuple):
    """Types of OffsetCommit's or TxnOffsetCommit's response: their fields have the same names."""

    response: Any
    topic: Any
    partition: Any


def commit_response(request: Request, code: int, types: CommitResponseTypes) -> Any:
    """Returns a response with the same error code for every partition of the request."""
    return types.response(topics=[_topic_answer(topic, code, types) for topic in request.body.topics])


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


def check_topics(context: Context, request: Request, types: CommitResponseTypes) -> Generator[None, None, Any]:
    """Returns a response with the errors of unknown and unauthorized partitions; removes these from the request.

    Yields after each topic. What it returns is right in the turn in which it ends.
    """
    image = context.controller.image
    answers = []
    kept = []
    for topic in request.body.topics:
        answer = _topic_answer(topic, ErrorCode.NONE, types)
        answers.append(answer)
        if _check_topic(context, request, topic, answer):
            kept.append((topic, answer))
        yield
    if context.controller.image is not image:  # topics may have been deleted meanwhile, and their offsets
        kept = [(topic, answer) for topic, answer in kept if _check_topic(context, request, topic, answer)]
    request.body.topics = [topic for topic, _ in kept]
    return types.response(topics=answers)


def _check_topic(context: Context, request: Request, topic: Any, answer: Any) -> bool:
    """Whether any partition of the topic is left."""
    known = context.controller.image.topic(topic.name)
    count = 0 if known is None else len(known.partitions)
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not allows_topic(context, request, AclOperation.READ, topic.name):
        count, code = 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if any(not 0 <= partition.partition_index < count for partition in topic.partitions):
        for partition in answer.partitions:
            if not 0 <= partition.partition_index < count:
                partition.error_code = code
        topic.partitions = [partition for partition in topic.partitions if 0 <= partition.partition_index < count]
    return bool(topic.partitions)


def _topic_answer(topic: Any, code: int, types: CommitResponseTypes) -> Any:
    partition_type = types.partition
    return types.topic(
        name=topic.name,
        partitions=[
            partition_type(partition_index=partition.partition_index, error_code=code) for partition in topic.partitions
        ],
    )
