"""ListOffsets (2), v0-10: returns the first offset at or after a timestamp, or the offset for a special timestamp:

    -1 latest: high watermark, or last stable offset (read_committed, v2)
    -2 earliest: log start offset
    -3 offset of the largest timestamp (v7, KIP-734)
    -4 earliest local offset (v8): the same as -2, because there is no tiered storage
    -5 latest tiered offset (v9): always -1

v0 returns base offsets of segments, newest first. v4: the leader epoch, which also fences (KIP-320). Clients repeat
this request in a tight loop for a partition that does not exist, so an error response must be cheap.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import StorageFailure
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import list_offsets as messages
from kbroker.server.access.permissions import allows_topic
from kbroker.server.topics.hosted_partition import hosted_partition
from kbroker.time_slice import finish_in_slices

if TYPE_CHECKING:
    from kbroker.replication.partition import Partition
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = [
    "CONSUMER",
    "EARLIEST",
    "LATEST",
    "READ_COMMITTED",
    "earliest_epoch",
    "handle",
    "is_catching_up",
    "plain_answer",
    "refuse",
]

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5

CONSUMER: Final = -1
READ_COMMITTED: Final = 1

_SPECIAL_SINCE: Final = {LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}

_NOT_AVAILABLE_SINCE: Final = 5

_Result = messages.ListOffsetsPartitionResponse.value


def handle(context: Context, request: Request) -> Any:
    # In slices also because logs may have to be loaded: thousands of them at once would block the broker for seconds.
    return finish_in_slices(context.clock, _respond(context, request))


def _respond(context: Context, request: Request) -> Generator[None, None, Any]:
    results = []
    for topic in request.body.topics:
        is_allowed = allows_topic(context, request, AclOperation.DESCRIBE, topic.name)
        partitions = []
        counts: dict[int, int] = {}
        if is_allowed and len(topic.partitions) > 1 and request.version > 0:
            for requested in topic.partitions:
                counts[requested.partition_index] = counts.get(requested.partition_index, 0) + 1
                yield
        for requested in topic.partitions:
            index = requested.partition_index
            if not is_allowed:
                partitions.append(_failure(index, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            elif counts.get(index, 1) == 1:
                partitions.append(_result(context, request, topic.name, requested))
            yield
        for index in [index for index, count in counts.items() if count > 1]:
            partitions.append(_failure(index, ErrorCode.INVALID_REQUEST))
            yield
        results.append(messages.ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
        yield
    return messages.RESPONSE(topics=results)


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(
        topics=[
            messages.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[_failure(partition.partition_index, code) for partition in topic.partitions],
            )
            for topic in request.body.topics
        ]
    )


def plain_answer(request: Request, offset: int, leader_epoch: int) -> Any:
    """Returns the response to a request for the latest or earliest offset of one partition."""
    (topic,) = request.body.topics
    result = _Result(partition_index=topic.partitions[0].partition_index, offset=offset, leader_epoch=leader_epoch)
    return messages.RESPONSE(topics=[messages.ListOffsetsTopicResponse(name=topic.name, partitions=[result])])


def _failure(index: int, code: int) -> Any:
    return _Result(partition_index=index, error_code=code)


def _result(context: Context, request: Request, name: str, requested: Any) -> Any:
    index, timestamp = requested.partition_index, requested.timestamp
    if timestamp < 0 and request.version < _SPECIAL_SINCE.get(timestamp, 1 << 15):
        return _failure(index, ErrorCode.UNSUPPORTED_VERSION)
    partition = hosted_partition(context, name, index, leader_epoch=requested.current_leader_epoch)
    if isinstance(partition, ErrorCode):
        return _failure(index, partition)
    try:
        if request.version == 0:
            offsets = _segment_starts(context, request, partition, requested)
            return _Result(partition_index=index, old_style_offsets=offsets)
        return _find(request, partition, timestamp)
    except StorageFailure:
        return _failure(index, ErrorCode.KAFKA_STORAGE_ERROR)


def _find(request: Request, partition: Partition, timestamp: int) -> Any:
    log = partition.log
    index = partition.index
    if timestamp == LATEST:
        if request.body.replica_id == CONSUMER and is_catching_up(partition):
            return _not_available(request, index)
        return _Result(
            partition_index=index, offset=_visible_end(request, partition), leader_epoch=partition.leader_epoch
        )
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return _Result(partition_index=index, offset=log.log_start_offset, leader_epoch=earliest_epoch(partition))
    if timestamp == LATEST_TIERED:
        return _Result(partition_index=index)
    found = log.offset_of_max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
    if found is None or found.offset >= _visible_end(request, partition):
        if request.body.replica_id == CONSUMER and is_catching_up(partition):
            return _not_available(request, index)
        return _Result(partition_index=index)
    return _Result(
        partition_index=index, timestamp=found.timestamp, offset=found.offset, leader_epoch=found.leader_epoch
    )


def is_catching_up(partition: Partition) -> bool:
    """Whether a new leader's high watermark is below the start of its epoch.

    It may then be below offsets that clients got from the former leader; returning it would move them back (KIP-207).
    """
    leadership = partition.leadership
    return leadership is not None and partition.high_watermark < leadership.view.epoch_start_offset


def _not_available(request: Request, index: int) -> Any:
    is_known = request.version >= _NOT_AVAILABLE_SINCE
    return _failure(index, ErrorCode.OFFSET_NOT_AVAILABLE if is_known else ErrorCode.LEADER_NOT_AVAILABLE)


def _visible_end(request: Request, partition: Partition) -> int:
    """Returns the end of the records that the client may see; followers and debugging consumers see the whole log."""
    if request.body.replica_id != CONSUMER:
        return partition.log.log_end_offset
    if request.body.isolation_level == READ_COMMITTED:
        return partition.last_stable_offset
    return partition.high_watermark


def earliest_epoch(partition: Partition) -> int:
    """Returns the leader epoch of the first record, the current epoch if the log is empty, or -1 if it is unknown."""
    log = partition.log
    entries = log.leader_epochs.entries
    if entries and entries[0].start_offset <= log.log_start_offset:
        return entries[0].epoch
    return partition.leader_epoch if log.log_start_offset == log.log_end_offset else -1


def _segment_starts(context: Context, request: Request, partition: Partition, requested: Any) -> list[int]:
    """Returns the v0 result: start offsets of the segments older than the timestamp, and the log end, newest first.

    Kafka compares the modification times of files. Timestamps of records are used here: copying files keeps them.
    """
    log = partition.log
    start, end = log.log_start_offset, log.log_end_offset
    bases = log.segment_base_offsets
    offsets = [max(base, start) for base in bases]
    if end > bases[-1]:
        offsets.append(end)
    if requested.timestamp == EARLIEST:
        del offsets[1:]
    elif requested.timestamp != LATEST:
        younger = log.offset_for_timestamp(requested.timestamp + 1)
        if younger is not None:
            offsets = [max(base, start) for base, next_base in pairwise(bases) if next_base <= younger.offset]
        elif context.clock.now_ms() > requested.timestamp:
            del offsets[len(bases) :]
    found = sorted(offsets, reverse=True)[: max(requested.max_num_offsets, 0)]
    bound = partition.high_watermark
    if request.body.replica_id == CONSUMER and any(offset > bound for offset in found):
        found = [bound, *(offset for offset in found if offset <= bound)]
    return found
