"""DescribeProducers (61), v0: returns the idempotent and transactional producers that partitions know (KIP-664).

A partition that a request names several times is described once, so that a small request does not make a huge response.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kbroker.errors import StorageFailure
from kbroker.names import topic_name_problem
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_producers as messages
from kbroker.server.access.permissions import allows_topic
from kbroker.server.topics.hosted_partition import hosted_partition
from kbroker.time_slice import respond_in_slices

if TYPE_CHECKING:
    from kbroker.log.producers.producer_state import ProducerEntry
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

_Topics = dict[str, dict[int, Any]]
"""Results by topic and partition, in the order of the request."""


def handle(context: Context, request: Request) -> Any:
    topics: _Topics = {}

    def add(step: tuple[list[Any], int, ProducerEntry] | None) -> None:
        if step is not None:
            producers, producer_id, entry = step
            producers.append(_producer(producer_id, entry))

    def respond(_: list[None]) -> Any:
        return respond_in_slices(
            context.clock, _topic_response, topics.items(), lambda results: messages.RESPONSE(topics=results)
        )

    return respond_in_slices(context.clock, add, _steps(context, request, topics), respond)


def refuse(request: Request, code: int, message: str | None) -> Any:
    topics: _Topics = {}
    for topic in request.body.topics:
        partitions = topics.setdefault(topic.name, {})
        partitions.update((index, _failure(index, code, message)) for index in topic.partition_indexes)
    return messages.RESPONSE(topics=[_topic_response(topic) for topic in topics.items()])


def _topic_response(topic: tuple[str, dict[int, Any]]) -> Any:
    name, partitions = topic
    return messages.TopicResponse(name=name, partitions=list(partitions.values()))


def _steps(
    context: Context, request: Request, topics: _Topics
) -> Iterator[tuple[list[Any], int, ProducerEntry] | None]:
    """Adds the partitions of the request to `topics`. Yields each of their producers, with the list that it belongs to.

    Yields None where the slice of time may end besides.
    """
    for topic in request.body.topics:
        partitions = topics.setdefault(topic.name, {})
        yield None
        problem = topic_name_problem(topic.name)
        code = ErrorCode.NONE
        if problem is not None:
            code = ErrorCode.INVALID_TOPIC_EXCEPTION
        elif not allows_topic(context, request, AclOperation.READ, topic.name):
            code, problem = ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."
        for index in topic.partition_indexes:
            yield None
            if index in partitions:
                continue
            if code:
                partitions[index] = _failure(index, code, problem)
                continue
            entries = _entries(context, topic.name, index)
            if isinstance(entries, ErrorCode):
                partitions[index] = _failure(index, entries)
                continue
            producers: list[Any] = []
            partitions[index] = messages.PartitionResponse(partition_index=index, active_producers=producers)
            for producer_id, entry in entries:
                yield producers, producer_id, entry


def _entries(context: Context, name: str, index: int) -> list[tuple[int, ProducerEntry]] | ErrorCode:
    """Returns a copy: producers come and go between two slices."""
    partition = hosted_partition(context, name, index)
    if isinstance(partition, ErrorCode):
        return partition
    try:
        return list(partition.log.producers.entries.items())
    except StorageFailure:
        return ErrorCode.KAFKA_STORAGE_ERROR


def _producer(producer_id: int, entry: ProducerEntry) -> Any:
    return messages.ProducerState(
        producer_id=producer_id,
        producer_epoch=entry.epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=entry.current_txn_first_offset,
    )


def _failure(index: int, code: int, message: str | None = None) -> Any:
    return messages.PartitionResponse(partition_index=index, error_code=code, error_message=message)
