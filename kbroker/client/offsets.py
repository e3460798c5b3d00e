"""ListOffsets, OffsetFetch and OffsetCommit: where partitions begin and end, and how far a group has come."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from kbroker.client.cluster import Answer, Cluster, Topic
from kbroker.client.connection import Connection
from kbroker.client.failures import BrokerRefusal, ConnectionFailed
from kbroker.errors import UserError
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.registry import api

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "NO_OFFSET",
    "FoundOffset",
    "commit_offsets",
    "committed_offsets",
    "list_offsets",
]

LIST_OFFSETS: Final = api(2)
OFFSET_COMMIT: Final = api(8)
OFFSET_FETCH: Final = api(9)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
NO_OFFSET: Final = -1

_CONSUMER: Final = -1
_FIRST_WITH_MAX_TIMESTAMP: Final = 7


class FoundOffset(NamedTuple):
    offset: int
    """NO_OFFSET where no record is that young."""
    timestamp: int


async def list_offsets(
    cluster: Cluster, topic: str, timestamps: Mapping[int, int], *, read_committed: bool = False
) -> dict[int, FoundOffset]:
    """Partition -> the first offset at or after its timestamp, or what EARLIEST, LATEST, MAX_TIMESTAMP stand for."""
    from kbroker.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsTopic

    at_least = _FIRST_WITH_MAX_TIMESTAMP if MAX_TIMESTAMP in timestamps.values() else 1

    async def ask(connection: Connection, _topic: Topic, wanted: Mapping[int, int]) -> dict[int, Answer]:
        partitions = [ListOffsetsPartition(partition_index=index, timestamp=time) for index, time in wanted.items()]
        response = await connection.ask(
            LIST_OFFSETS,
            at_least=at_least,
            replica_id=_CONSUMER,
            isolation_level=1 if read_committed else 0,
            topics=[ListOffsetsTopic(name=topic, partitions=partitions)],
            timeout_ms=30_000,
        )
        return {
            each.partition_index: Answer(each.error_code, FoundOffset(each.offset, each.timestamp))
            for answered in response.topics
            for each in answered.partitions
        }

    return await cluster.ask_leaders(topic, timestamps, ask)


async def _at_coordinator(cluster: Cluster, group: str, ask: Callable[[Connection], Awaitable[tuple[int, Any]]]) -> Any:
    """Asks for an error code and a value, again while the coordinator is only coming up, or moves."""
    patience = cluster.patience()
    while True:
        failure: UserError
        try:
            code, value = await ask(await cluster.coordinator_connection(group))
        except ConnectionFailed as broken:
            failure = broken
        else:
            if code == ErrorCode.NONE:
                return value
            failure = BrokerRefusal(code, f"group {group}", _REASONS.get(code))
            if not failure.code.retriable:
                raise failure
        await patience.pause(failure)


_REASONS: Final[Mapping[int, str]] = {
    ErrorCode.UNKNOWN_MEMBER_ID: "it has members now, and only they may commit",
    ErrorCode.REBALANCE_IN_PROGRESS: "it has members now, and only they may commit",
}


async def committed_offsets(cluster: Cluster, group: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Partition -> the group's offset; those that it has none for are left out."""
    from kbroker.protocol.messages import offset_fetch

    indexes = list(partitions)
    named = [offset_fetch.OffsetFetchRequestTopics(name=topic, partition_indexes=indexes)]

    async def ask(connection: Connection) -> tuple[int, dict[int, int]]:
        response = await connection.ask(
            OFFSET_FETCH,
            at_least=1,
            at_most=9,
            group_id=group,
            topics=[offset_fetch.OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)],
            groups=[offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=named)],
        )
        answered = response.groups[0] if response.groups else response
        found = [each for answer in answered.topics for each in answer.partitions]
        code = answered.error_code or next((each.error_code for each in found if each.error_code), 0)
        return code, {
            each.partition_index: each.committed_offset for each in found if each.committed_offset != NO_OFFSET
        }

    offsets: dict[int, int] = await _at_coordinator(cluster, group, ask)
    return offsets


async def commit_offsets(cluster: Cluster, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    """As somebody who is no member: allowed while the group has none."""
    from kbroker.protocol.messages.offset_commit import OffsetCommitRequestPartition, OffsetCommitRequestTopic

    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        for index, offset in offsets.items()
    ]
    named = [OffsetCommitRequestTopic(name=topic, partitions=partitions)]

    async def ask(connection: Connection) -> tuple[int, None]:
        # Up to v9: later ones name topics by id.
        response = await connection.ask(OFFSET_COMMIT, at_least=2, at_most=9, group_id=group, topics=named)
        codes = (each.error_code for answer in response.topics for each in answer.partitions)
        return next((code for code in codes if code), 0), None

    await _at_coordinator(cluster, group, ask)
