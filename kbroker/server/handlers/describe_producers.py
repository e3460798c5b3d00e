"""DescribeProducers (61), v0: what partitions remember of their idempotent and transactional producers (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.errors import StorageFailure
from kbroker.names import topic_name_problem
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_producers as messages
from kbroker.server.authorization import Operation
from kbroker.server.hosted_partition import hosted_partition
from kbroker.server.permissions import allows_topic

if TYPE_CHECKING:
    from kbroker.log.producer_state import ProducerEntry
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]


def handle(context: Context, request: Request) -> Any:
    return messages.RESPONSE(
        topics=[
            messages.TopicResponse(name=topic.name, partitions=_topic(context, request, topic))
            for topic in request.body.topics
        ]
    )


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(
        topics=[
            messages.TopicResponse(
                name=topic.name, partitions=[_failure(index, code, message) for index in topic.partition_indexes]
            )
            for topic in request.body.topics
        ]
    )


def _topic(context: Context, request: Request, topic: Any) -> list[Any]:
    problem = topic_name_problem(topic.name)
    if problem is not None:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif not allows_topic(context, request, Operation.READ, topic.name):
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    else:
        return [_partition(context, topic.name, index) for index in topic.partition_indexes]
    return [_failure(index, code, problem) for index in topic.partition_indexes]


def _partition(context: Context, name: str, index: int) -> Any:
    partition = hosted_partition(context, name, index)
    if isinstance(partition, ErrorCode):
        return _failure(index, partition)
    try:
        entries = partition.log.producers.entries
    except StorageFailure:
        return _failure(index, ErrorCode.KAFKA_STORAGE_ERROR)
    producers = [_producer(producer_id, entry) for producer_id, entry in entries.items()]
    return messages.PartitionResponse(partition_index=index, active_producers=producers)


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
