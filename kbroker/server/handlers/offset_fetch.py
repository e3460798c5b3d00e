"""OffsetFetch (9), v0-9: what groups have committed. Nothing committed is offset -1, not an error.

v0, v1: an error of the group stands at every partition. v2: at the top, and no topics means all. v8: many groups, each
with its own error. v9: a member of a consumer group says its epoch. v7: whoever needs stable offsets is told to come
again (UNSTABLE_OFFSET_COMMIT) where a transaction is open that may change one.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import offset_fetch as messages
from kbroker.server.authorization import Operation
from kbroker.server.group_requests import answer_after, find_shard, group_ticket
from kbroker.server.permissions import allows_topic

if TYPE_CHECKING:
    from kbroker.coordinator.shard_driver import ShardDriver
    from kbroker.group.records import CommittedOffset
    from kbroker.group.shard import GroupShard
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]

ERROR_AT_THE_TOP_SINCE: Final = 2
MANY_GROUPS_SINCE: Final = 8

_ALL_STABLE: Final[frozenset[tuple[str, int]]] = frozenset()

_Response = messages.RESPONSE.value
_Group = messages.OffsetFetchResponseGroup.value


def handle(context: Context, request: Request) -> None:
    body = request.body
    drivers: dict[ShardDriver, None] = {}
    if request.version < MANY_GROUPS_SINCE:
        driver = find_shard(context, request, Operation.DESCRIBE, body.group_id)
        drivers[driver] = None
        topics = _topics(context, request, driver.shard, body.group_id, body.topics)
        response = _Response(topics=topics)
    else:
        response = _Response(groups=[_group(context, request, each, drivers) for each in body.groups])
    answer_after(list(drivers), group_ticket(request, refuse), response)


def refuse(request: Request, code: int, message: str | None) -> Any:
    body = request.body
    if request.version >= MANY_GROUPS_SINCE:
        return _Response(groups=[_Group(group_id=each.group_id, error_code=code) for each in body.groups])
    if request.version >= ERROR_AT_THE_TOP_SINCE:
        return _Response(error_code=code)
    return _Response(topics=[_topic(request, each.name, each.partition_indexes, {}, code) for each in body.topics])


def _group(context: Context, request: Request, asked: Any, drivers: dict[ShardDriver, None]) -> Any:
    try:
        driver = find_shard(context, request, Operation.DESCRIBE, asked.group_id)
        driver.shard.check_fetch(asked.group_id, asked.member_id, asked.member_epoch)
    except Refusal as refusal:
        return _Group(group_id=asked.group_id, error_code=refusal.code)
    drivers[driver] = None
    topics = _topics(context, request, driver.shard, asked.group_id, asked.topics)
    return _Group(group_id=asked.group_id, topics=topics)


def _topics(
    context: Context,
    request: Request,
    shard: GroupShard,
    group_id: str,
    asked: list[Any] | None,
) -> list[Any]:
    committed = shard.offsets(group_id)
    if not request.body.require_stable:
        unstable: Set[tuple[str, int]] = _ALL_STABLE
    else:
        unstable = shard.unstable_partitions(group_id)
    if asked is not None:
        return [
            _topic(request, each.name, each.partition_indexes, committed, unstable=unstable)
            if allows_topic(context, request, Operation.DESCRIBE, each.name)
            else _topic(request, each.name, each.partition_indexes, {}, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            for each in asked
        ]
    by_topic: dict[str, list[int]] = {}
    for name, index in committed:
        by_topic.setdefault(name, []).append(index)
    return [
        _topic(request, name, indexes, committed, unstable=unstable)
        for name, indexes in by_topic.items()
        if allows_topic(context, request, Operation.DESCRIBE, name)
    ]


def _topic(
    request: Request,
    name: str,
    indexes: list[int],
    committed: Mapping[tuple[str, int], CommittedOffset],
    code: int = ErrorCode.NONE,
    unstable: Set[tuple[str, int]] = _ALL_STABLE,
) -> Any:
    if request.version >= MANY_GROUPS_SINCE:
        topic, partition = messages.OffsetFetchResponseTopics, messages.OffsetFetchResponsePartitions
    else:
        topic, partition = messages.OffsetFetchResponseTopic, messages.OffsetFetchResponsePartition
    answers = []
    for index in indexes:
        found = committed.get((name, index))
        told = ErrorCode.UNSTABLE_OFFSET_COMMIT if unstable and (name, index) in unstable else code
        if found is None or told:
            answers.append(partition(partition_index=index, committed_offset=-1, metadata="", error_code=told))
        else:
            offset, epoch, metadata = found[:3]
            answers.append(
                partition(
                    partition_index=index, committed_offset=offset, committed_leader_epoch=epoch, metadata=metadata
                )
            )
    return topic(name=name, partitions=answers)
