"""DescribeTopicPartitions (75), v0: describes topics in the order of their names, page by page (KIP-966).

An empty list of topics means all topics. A page ends at the partition limit of the client or the broker, whichever is
smaller; its cursor says where the next page begins. Lists of eligible leaders are empty, never null: Java's admin
client fails on null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final

from kbroker.controller.image import PartitionState, TopicImage
from kbroker.controller.rules.election import is_online
from kbroker.errors import Refusal
from kbroker.names import is_internal_topic, topic_name_problem
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_topic_partitions as messages
from kbroker.server.access.authorized_operations import topic_operations
from kbroker.server.access.permissions import allows_topic
from kbroker.server.topics.offline_replicas import mark_offline
from kbroker.time_slice import respond_in_slices

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

_SORTED_AT_ONCE: Final = 1000

_Topic = messages.DescribeTopicPartitionsResponseTopic.value
_Partition = messages.DescribeTopicPartitionsResponsePartition.value


def handle(context: Context, request: Request) -> Any:
    body = request.body
    if not body.topics:
        return _describe(context, request, set(context.controller.image.topics))
    requested: set[str] = set()
    return respond_in_slices(
        context.clock,
        lambda topic: requested.add(topic.name),
        body.topics,
        lambda _: _describe(context, request, requested),
    )


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(topics=[_Topic(name=topic.name, error_code=code) for topic in request.body.topics])


def _describe(context: Context, request: Request, requested: set[str]) -> Any:
    body = request.body
    first = "" if body.cursor is None else body.cursor.topic_name
    if body.topics and body.cursor is not None and first not in requested:
        message = f"DescribeTopicPartitionsRequest topic list should contain the cursor topic: {first}"
        raise Refusal(ErrorCode.INVALID_REQUEST, message)
    if body.cursor is not None and body.cursor.partition_index < 0:
        message = f"DescribeTopicPartitionsRequest cursor partition must be valid: {_cursor_text(body.cursor)}"
        raise Refusal(ErrorCode.INVALID_REQUEST, message)
    page = _Page(context, request)

    def add_pages(parts: list[list[str]]) -> Any:
        names = takewhile(lambda _: page.next_cursor is None, merge(*parts))
        return respond_in_slices(context.clock, page.add, names, page.response)

    def sort(part: Sequence[str]) -> list[str]:
        return sorted(name for name in part if name >= first and page.allows(name))

    # Sorting a million names at once would take a second. `merge` is lazy: it does its work between two topics.
    return respond_in_slices(context.clock, sort, _parts(requested), add_pages)


def _parts(names: Iterable[str]) -> Iterator[Sequence[str]]:
    remaining = iter(names)
    while part := tuple(islice(remaining, _SORTED_AT_ONCE)):
        yield part


def _cursor_text(cursor: Any) -> str:
    """Formats a cursor as Java's `toString` does."""
    return f"Cursor(topicName='{cursor.topic_name}', partitionIndex={cursor.partition_index})"


class _Page:
    """Collects topics in the order of their names, until the limit of partitions is reached.

    All of them are from the image of the moment when the page begins.
    """

    def __init__(self, context: Context, request: Request) -> None:
        self._context = context
        self._request = request
        self._image = image = context.controller.image
        self._reachable = {
            broker.id for broker in image.brokers.values() if broker.endpoint(request.listener_name) is not None
        }
        limit = min(request.body.response_partition_limit, context.config.max_request_partition_size_limit)
        self._partitions_left = max(1, limit)
        self._topics: list[Any] = []
        self._hidden: list[str] = []
        self.next_cursor: Any = None
        """Begin of the next page, or None while this page is not full."""

    def allows(self, name: str) -> bool:
        quiet = not self._request.body.topics
        is_allowed = allows_topic(self._context, self._request, AclOperation.DESCRIBE, name, quiet=quiet)
        if not is_allowed and not quiet:
            self._hidden.append(name)
        return is_allowed

    def add(self, name: str) -> None:
        if self._partitions_left == 0:
            self.next_cursor = messages.Cursor(topic_name=name, partition_index=0)
            return
        topic = self._image.topic(name)
        result = _absent(name) if topic is None else self._described(topic)
        result.topic_authorized_operations = topic_operations(self._context, self._request, name)
        self._topics.append(result)

    def _described(self, topic: TopicImage) -> Any:
        cursor = self._request.body.cursor
        begin = cursor.partition_index if cursor is not None and cursor.topic_name == topic.name else 0
        end = min(begin + self._partitions_left, len(topic.partitions))
        result = _described(topic, range(begin, end), self._reachable)
        mark_offline(self._context, [result])
        self._partitions_left -= len(result.partitions)
        if end < len(topic.partitions):
            self.next_cursor = messages.Cursor(topic_name=topic.name, partition_index=end)
        return result

    def response(self, _: list[None]) -> Any:
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        hidden = [_Topic(name=name, error_code=code) for name in sorted(self._hidden)]
        return messages.RESPONSE(topics=self._topics + hidden, next_cursor=self.next_cursor)


def _absent(name: str) -> Any:
    is_invalid = topic_name_problem(name) is not None
    code = ErrorCode.INVALID_TOPIC_EXCEPTION if is_invalid else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return _Topic(name=name, error_code=code, is_internal=is_internal_topic(name))


def _described(topic: TopicImage, numbers: range, reachable: set[int]) -> Any:
    partitions = [_partition(index, topic.partitions[index], reachable) for index in numbers]
    return _Topic(name=topic.name, topic_id=topic.id, is_internal=topic.is_internal, partitions=partitions)


def _partition(index: int, partition: PartitionState, reachable: set[int]) -> Any:
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
        offline_replicas=[replica for replica in partition.replicas if not is_online(partition, replica, reachable)],
    )
