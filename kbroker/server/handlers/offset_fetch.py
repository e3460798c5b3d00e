"""OffsetFetch (9), v0-9: returns committed offsets of groups; offset -1, not an error, if nothing is committed.

v0-1: an error of the group is set for every partition. v2: a top-level error; null topics mean all topics. v7: with
`require_stable`, an offset that an open transaction may change gets UNSTABLE_OFFSET_COMMIT, and the client retries
(KIP-447). v8: several groups, each with its own error (KIP-709). v9: the member id and epoch of a consumer group
(KIP-848). A group, topic or partition that a request names several times is answered once: the metadata of an offset
can be a thousand times larger than the index in the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import offset_fetch as messages
from kbroker.server.access.permissions import allows_topic
from kbroker.server.coordinators.group_requests import answer_after, find_shard, pending_response
from kbroker.time_slice import respond_in_slices

if TYPE_CHECKING:
    from kbroker.coordinator.shard_driver import ShardDriver
    from kbroker.group.records import CommittedOffset
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

TOP_LEVEL_ERROR_SINCE: Final = 2
MANY_GROUPS_SINCE: Final = 8

_ALL_STABLE: Final[frozenset[tuple[str, int]]] = frozenset()

_Response = messages.RESPONSE.value
_Group = messages.OffsetFetchResponseGroup.value


def handle(context: Context, request: Request) -> Any:
    drivers: dict[ShardDriver, None] = {}
    answers: dict[str, _Answer] = {}

    def respond(_: list[None]) -> Any:
        if request.version >= MANY_GROUPS_SINCE:
            return respond_in_slices(context.clock, _Answer.group, answers.values(), respond_with_groups)
        (answer,) = answers.values()
        send(_Response(topics=list(answer.topics.values())))
        return None

    def respond_with_groups(groups: list[Any]) -> None:
        send(_Response(groups=groups))

    def send(response: Any) -> None:
        answer_after(list(drivers), pending_response(request, refuse), response)

    return respond_in_slices(context.clock, _ignore, _steps(context, request, answers, drivers), respond)


def refuse(request: Request, code: int, message: str | None) -> Any:
    body = request.body
    if request.version >= MANY_GROUPS_SINCE:
        return _Response(groups=[_Group(group_id=group.group_id, error_code=code) for group in body.groups])
    if request.version >= TOP_LEVEL_ERROR_SINCE:
        return _Response(error_code=code)
    return _Response(topics=[_refused_topic(request, topic, code) for topic in body.topics])


class _Answer:
    """Offsets of one group, as far as they are collected. A refused group has a code and no topics."""

    __slots__ = ("_group_id", "_indexes", "_request", "code", "found", "has_all", "topics")

    def __init__(self, request: Request, group_id: str) -> None:
        self._request = request
        self._group_id = group_id
        self._indexes: dict[str, set[int]] = {}
        self.topics: dict[str, Any] = {}
        self.code: int = ErrorCode.NONE
        self.found: _Offsets | None = None
        self.has_all = False

    def group(self) -> Any:
        return _Group(group_id=self._group_id, error_code=self.code, topics=list(self.topics.values()))

    def add(self, name: str, indexes: Iterable[int], offsets: _Offsets, code: int = ErrorCode.NONE) -> Iterator[None]:
        """Adds the partitions that the topic does not have yet. Yields after each partition."""
        topic, partition = _types(self._request)
        seen = self._indexes.get(name)
        if seen is None:
            seen = self._indexes[name] = set()
            self.topics[name] = topic(name=name, partitions=[])
        results = self.topics[name].partitions
        for index in indexes:
            if index not in seen:
                seen.add(index)
                results.append(offsets.result(partition, name, index, code))
            yield None


def _steps(
    context: Context, request: Request, answers: dict[str, _Answer], drivers: dict[ShardDriver, None]
) -> Iterator[None]:
    """Collects the answers and the shards that they come from. Yields where the slice of time may end."""
    body = request.body
    if request.version < MANY_GROUPS_SINCE:
        driver = find_shard(context, request, AclOperation.DESCRIBE, body.group_id)
        drivers[driver] = None
        answer = answers[body.group_id] = _Answer(request, body.group_id)
        yield from _add_topics(context, request, driver, body.group_id, body.topics, answer)
        return
    for group in body.groups:
        group_id = group.group_id
        try:
            driver = find_shard(context, request, AclOperation.DESCRIBE, group_id)
            driver.shard.offsets.check_fetch(group_id, group.member_id, group.member_epoch)
        except Refusal as refusal:
            if group_id not in answers:
                answers[group_id] = _Answer(request, group_id)
                answers[group_id].code = refusal.code
        else:
            drivers[driver] = None
            if group_id not in answers:
                answers[group_id] = _Answer(request, group_id)
            if not answers[group_id].code:
                yield from _add_topics(context, request, driver, group_id, group.topics, answers[group_id])
        yield None


def _add_topics(
    context: Context,
    request: Request,
    driver: ShardDriver,
    group_id: str,
    requested: list[Any] | None,
    answer: _Answer,
) -> Iterator[None]:
    found = answer.found
    if found is None:
        offsets = driver.shard.offsets
        unstable = offsets.unstable_partitions(group_id) if request.body.require_stable else _ALL_STABLE
        found = answer.found = _Offsets(offsets.committed(group_id), unstable)
    if requested is not None:
        for topic in requested:
            if allows_topic(context, request, AclOperation.DESCRIBE, topic.name):
                yield from answer.add(topic.name, topic.partition_indexes, found)
            else:
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                yield from answer.add(topic.name, topic.partition_indexes, _NOTHING, code)
            yield None
        return
    if answer.has_all:
        return
    answer.has_all = True
    by_topic: dict[str, list[int]] = {}
    for name, index in tuple(found.committed):  # others may commit between two slices
        by_topic.setdefault(name, []).append(index)
        yield None
    for name, indexes in by_topic.items():
        if allows_topic(context, request, AclOperation.DESCRIBE, name):
            yield from answer.add(name, indexes, found)
        yield None


class _Offsets(NamedTuple):
    """Committed offsets of a group, and the partitions whose offset an open transaction may change."""

    committed: Mapping[tuple[str, int], CommittedOffset]
    unstable: Set[tuple[str, int]]

    def result(self, partition: Any, name: str, index: int, code: int) -> Any:
        found = self.committed.get((name, index))
        error = ErrorCode.UNSTABLE_OFFSET_COMMIT if self.unstable and (name, index) in self.unstable else code
        if found is None or error:
            return partition(partition_index=index, committed_offset=-1, metadata="", error_code=error)
        offset, epoch, metadata = found[:3]
        return partition(
            partition_index=index, committed_offset=offset, committed_leader_epoch=epoch, metadata=metadata
        )


_NOTHING: Final = _Offsets({}, _ALL_STABLE)


def _types(request: Request) -> tuple[Any, Any]:
    """Returns the types of a topic and a partition in the response."""
    if request.version >= MANY_GROUPS_SINCE:
        return messages.OffsetFetchResponseTopics, messages.OffsetFetchResponsePartitions
    return messages.OffsetFetchResponseTopic, messages.OffsetFetchResponsePartition


def _refused_topic(request: Request, topic: Any, code: int) -> Any:
    topic_type, partition = _types(request)
    results = [_NOTHING.result(partition, topic.name, index, code) for index in topic.partition_indexes]
    return topic_type(name=topic.name, partitions=results)


def _ignore(_: None) -> None:
    """Does nothing: the steps do the work."""
