"""DescribeTopicPartitions (75), v0: topics in the order of their names, page by page, with the replicas that may lead.

No names stand for all topics. A page ends when it holds as many partitions as the client or the broker allows; its
cursor says where the next one begins. Lists are never null: Java's admin client does not survive one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kbroker.controller.image import Partition, Topic
from kbroker.errors import Refusal
from kbroker.names import is_internal_topic, topic_name_problem
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_topic_partitions as messages
from kbroker.server.authorization import Operation
from kbroker.server.authorized_operations import topic_operations
from kbroker.server.offline_replicas import mark_offline
from kbroker.server.permissions import allows_topic

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]

_Topic = messages.DescribeTopicPartitionsResponseTopic.value
_Partition = messages.DescribeTopicPartitionsResponsePartition.value


def handle(context: Context, request: Request) -> Any:
    body = request.body
    names = _names(context, request)
    if body.cursor is not None and body.cursor.partition_index < 0:
        raise Refusal(ErrorCode.INVALID_REQUEST, "The cursor's partition is negative.")
    allowed = [name for name in names if allows_topic(context, request, Operation.DESCRIBE, name)]
    limit = max(1, min(body.response_partition_limit, context.config.max_request_partition_size_limit))
    topics, next_cursor = _page(context, request, allowed, limit)
    if body.topics:
        hidden = set(names).difference(allowed)
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        topics += [_Topic(name=name, error_code=code) for name in names if name in hidden]
    return messages.RESPONSE(topics=topics, next_cursor=next_cursor)


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(topics=[_Topic(name=each.name, error_code=code) for each in request.body.topics])


def _names(context: Context, request: Request) -> list[str]:
    """What is asked for, from the cursor's topic on."""
    body = request.body
    first = "" if body.cursor is None else body.cursor.topic_name
    wanted: Iterable[str] = {each.name for each in body.topics} or context.controller.image.topics
    names = sorted(name for name in wanted if name >= first)
    if body.topics and body.cursor is not None and first not in names:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"The cursor's topic {first} is not among the topics asked for.")
    return names


def _page(context: Context, request: Request, names: Iterable[str], limit: int) -> tuple[list[Any], Any]:
    image = context.controller.image
    reachable = {each.id for each in image.brokers.values() if each.endpoint(request.listener_name) is not None}
    cursor = request.body.cursor
    topics: list[Any] = []
    for name in names:
        if limit == 0:
            return topics, messages.Cursor(topic_name=name, partition_index=0)
        topic = image.topic(name)
        if topic is None:
            answer = _absent(name)
            topics.append(answer)
        else:
            begin = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
            end = min(begin + limit, len(topic.partitions))
            answer = _described(topic, range(begin, end), reachable)
            mark_offline(context, [answer])
            topics.append(answer)
            limit -= len(answer.partitions)
        answer.topic_authorized_operations = topic_operations(context, request, name)
        if topic is not None and end < len(topic.partitions):
            return topics, messages.Cursor(topic_name=name, partition_index=end)
    return topics, None


def _absent(name: str) -> Any:
    is_invalid = topic_name_problem(name) is not None
    code = ErrorCode.INVALID_TOPIC_EXCEPTION if is_invalid else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return _Topic(name=name, error_code=code, is_internal=is_internal_topic(name))


def _described(topic: Topic, numbers: range, reachable: set[int]) -> Any:
    partitions = [_partition(index, topic.partitions[index], reachable) for index in numbers]
    return _Topic(name=topic.name, topic_id=topic.id, is_internal=topic.is_internal, partitions=partitions)


def _partition(index: int, partition: Partition, reachable: set[int]) -> Any:
    has_leader = partition.leader in reachable
    return _Partition(
        error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=partition.leader if has_leader else -1,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=[each for each in partition.replicas if each not in reachable],
    )
