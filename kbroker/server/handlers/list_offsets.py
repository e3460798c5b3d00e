"""ListOffsets (2), v0-10: the offset that belongs to a timestamp, or to one of the names below.

    -1 latest: high watermark, or last stable offset (isolation, v2)      -3 the largest timestamp (v7)
    -2 earliest: log start                                                -4 earliest local (v8), as -2
                                                                          -5 latest tiered (v9): there is no tier, -1
v0 answers with the bases of segments, newest first. v4: epochs, which also fence. Clients repeat this request in a
tight loop for a partition that is not there, so a refusal must be cheap.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import trio

from kbroker.errors import StorageFailure
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import list_offsets as messages
from kbroker.server.authorization import Operation
from kbroker.server.hosted_partition import hosted_partition
from kbroker.server.permissions import allows_topic

if TYPE_CHECKING:
    from kbroker.log.partition_log import PartitionLog
    from kbroker.replication.partition import Partition
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5

CONSUMER: Final = -1
READ_COMMITTED: Final = 1

_NAMES_SINCE: Final = {LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}

_LOADS_AT_ONCE: Final = 16
_NOT_AVAILABLE_SINCE: Final = 5

_Answer = messages.ListOffsetsPartitionResponse.value


def handle(context: Context, request: Request) -> Any:
    logs = [
        partition.log
        for topic in request.body.topics
        for each in topic.partitions
        if (partition := context.partitions.get(topic.name, each.partition_index)) is not None
        and not partition.log.is_loaded
    ]
    return _response(context, request) if len(logs) <= _LOADS_AT_ONCE else _load_first(context, request, logs)


async def _load_first(context: Context, request: Request, logs: list[PartitionLog]) -> Any:
    """To read the tails of thousands of logs takes seconds, in which others want their turns."""
    for number, log in enumerate(logs, 1):
        with suppress(StorageFailure):  # whoever asks it next is told
            log.load()
        if number % _LOADS_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
    return _response(context, request)


def _response(context: Context, request: Request) -> Any:
    return messages.RESPONSE(
        topics=[
            messages.ListOffsetsTopicResponse(name=topic.name, partitions=_topic(context, request, topic))
            for topic in request.body.topics
        ]
    )


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(
        topics=[
            messages.ListOffsetsTopicResponse(
                name=topic.name, partitions=[_failure(each.partition_index, code) for each in topic.partitions]
            )
            for topic in request.body.topics
        ]
    )


def _topic(context: Context, request: Request, topic: Any) -> list[Any]:
    wanted = topic.partitions
    if not allows_topic(context, request, Operation.DESCRIBE, topic.name):
        return [_failure(each.partition_index, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for each in wanted]
    repeated: set[int] = set()
    if len(wanted) > 1 and request.version > 0:
        counts = Counter(each.partition_index for each in wanted)
        repeated = {index for index, count in counts.items() if count > 1}
    answers = [_answer(context, request, topic.name, each) for each in wanted if each.partition_index not in repeated]
    answers += [_failure(index, ErrorCode.INVALID_REQUEST) for index in sorted(repeated)]
    return answers


def _failure(index: int, code: int) -> Any:
    return _Answer(partition_index=index, error_code=code)


def _answer(context: Context, request: Request, name: str, wanted: Any) -> Any:
    index, timestamp = wanted.partition_index, wanted.timestamp
    if timestamp < 0 and request.version < _NAMES_SINCE.get(timestamp, 1 << 15):
        return _failure(index, ErrorCode.UNSUPPORTED_VERSION)
    partition = hosted_partition(context, name, index, leader_epoch=wanted.current_leader_epoch)
    if isinstance(partition, ErrorCode):
        return _failure(index, partition)
    try:
        if request.version == 0:
            offsets = _segment_starts(context, request, partition, wanted)
            return _Answer(partition_index=index, old_style_offsets=offsets)
        return _find(request, partition, timestamp)
    except StorageFailure:
        return _failure(index, ErrorCode.KAFKA_STORAGE_ERROR)


def _find(request: Request, partition: Partition, timestamp: int) -> Any:
    log = partition.log
    index = partition.index
    if timestamp == LATEST:
        if _is_catching_up(request, partition):
            return _not_yet(request, index)
        return _Answer(
            partition_index=index, offset=_visible_end(request, partition), leader_epoch=partition.leader_epoch
        )
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return _Answer(partition_index=index, offset=log.log_start_offset, leader_epoch=_earliest_epoch(partition))
    if timestamp == LATEST_TIERED:
        return _Answer(partition_index=index)
    found = log.offset_of_max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
    if found is None or found.offset >= _visible_end(request, partition):
        return _not_yet(request, index) if _is_catching_up(request, partition) else _Answer(partition_index=index)
    return _Answer(
        partition_index=index, timestamp=found.timestamp, offset=found.offset, leader_epoch=found.leader_epoch
    )


def _is_catching_up(request: Request, partition: Partition) -> bool:
    """A new leader may know less of what is committed than clients of the one before: they must not go back."""
    leadership = partition.leadership
    return (
        leadership is not None
        and request.body.replica_id == CONSUMER
        and partition.high_watermark < leadership.view.epoch_start_offset
    )


def _not_yet(request: Request, index: int) -> Any:
    is_known = request.version >= _NOT_AVAILABLE_SINCE
    return _failure(index, ErrorCode.OFFSET_NOT_AVAILABLE if is_known else ErrorCode.LEADER_NOT_AVAILABLE)


def _visible_end(request: Request, partition: Partition) -> int:
    """Followers, and consumers that debug, see the whole log."""
    if request.body.replica_id != CONSUMER:
        return partition.log.log_end_offset
    if request.body.isolation_level == READ_COMMITTED:
        return partition.last_stable_offset
    return partition.high_watermark


def _earliest_epoch(partition: Partition) -> int:
    """The epoch of the first record; in an empty log, of the record that will be the first."""
    log = partition.log
    entries = log.leader_epochs.entries
    if entries and entries[0].start_offset <= log.log_start_offset:
        return entries[0].epoch
    return partition.leader_epoch if log.log_start_offset == log.log_end_offset else -1


def _segment_starts(context: Context, request: Request, partition: Partition, wanted: Any) -> list[int]:
    """v0: where segments begin that are wholly older than the timestamp, and the log's end, newest first.

    Kafka takes the files' times for the age; the records' times do not change when files are copied.
    """
    log = partition.log
    start, end = log.log_start_offset, log.log_end_offset
    bases = log.segment_base_offsets
    offsets = [max(base, start) for base in bases]
    if end > bases[-1]:
        offsets.append(end)
    if wanted.timestamp == EARLIEST:
        del offsets[1:]
    elif wanted.timestamp != LATEST:
        younger = log.offset_for_timestamp(wanted.timestamp + 1)
        if younger is not None:
            offsets = [max(base, start) for base, next_base in pairwise(bases) if next_base <= younger.offset]
        elif context.clock.now_ms() > wanted.timestamp:
            del offsets[len(bases) :]
    found = sorted(offsets, reverse=True)[: max(wanted.max_num_offsets, 0)]
    bound = partition.high_watermark
    if request.body.replica_id == CONSUMER and any(offset > bound for offset in found):
        found = [bound, *(offset for offset in found if offset <= bound)]
    return found
