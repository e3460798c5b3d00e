"""ListOffsets, OffsetFetch and OffsetCommit: offsets of partitions, and committed offsets of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from kbroker.client.cluster import BrokerResponse, Cluster, TopicInfo
from kbroker.client.connection import BrokerConnection
from kbroker.client.coordinator import send_to_coordinator
from kbroker.protocol.error_codes import ErrorCode, error_code
from kbroker.protocol.registry import api

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "NO_OFFSET",
    "CommittedOffsets",
    "FoundOffset",
    "GroupOffset",
    "commit_group_offsets",
    "commit_offsets",
    "committed_offsets",
    "delete_offsets",
    "group_offsets",
    "list_offsets",
]

LIST_OFFSETS: Final = api(2)
OFFSET_COMMIT: Final = api(8)
OFFSET_FETCH: Final = api(9)
OFFSET_DELETE: Final = api(47)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
NO_OFFSET: Final = -1

_CONSUMER: Final = -1
_FIRST_WITH_MAX_TIMESTAMP: Final = 7


class FoundOffset(NamedTuple):
    offset: int
    """NO_OFFSET if no record has this timestamp or a later one."""
    timestamp: int


async def list_offsets(
    cluster: Cluster, topic: str, timestamps: Mapping[int, int], *, read_committed: bool = False
) -> dict[int, FoundOffset]:
    """Returns partition -> first offset whose timestamp is at or after the given one.

    EARLIEST, LATEST and MAX_TIMESTAMP are accepted in place of a timestamp.
    """
    from kbroker.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsTopic

    at_least = _FIRST_WITH_MAX_TIMESTAMP if MAX_TIMESTAMP in timestamps.values() else 1

    async def send(
        connection: BrokerConnection, _topic: TopicInfo, wanted: Mapping[int, int]
    ) -> dict[int, BrokerResponse]:
        partitions = [ListOffsetsPartition(partition_index=index, timestamp=time) for index, time in wanted.items()]
        response = await connection.send(
            LIST_OFFSETS,
            at_least=at_least,
            replica_id=_CONSUMER,
            isolation_level=1 if read_committed else 0,
            topics=[ListOffsetsTopic(name=topic, partitions=partitions)],
            timeout_ms=30_000,
        )
        return {
            partition.partition_index: BrokerResponse(
                partition.error_code, FoundOffset(partition.offset, partition.timestamp)
            )
            for topic_response in response.topics
            for partition in topic_response.partitions
        }

    return await cluster.send_to_leaders(topic, timestamps, send)


class GroupOffset(NamedTuple):
    offset: int
    metadata: str = ""
    """Text that the client committed with the offset."""


CommittedOffsets = Mapping[str, Mapping[int, GroupOffset]]
"""Topic -> partition -> committed offset."""


async def group_offsets(cluster: Cluster, group: str) -> dict[str, dict[int, GroupOffset]]:
    """Returns all committed offsets of a group; {} if the group does not exist."""
    return await _fetch_offsets(cluster, group, None)


async def committed_offsets(cluster: Cluster, *, group: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Returns partition -> committed offset. Partitions without a committed offset are left out."""
    found = await _fetch_offsets(cluster, group, {topic: list(partitions)})
    return {index: committed.offset for index, committed in found.get(topic, {}).items()}


async def _fetch_offsets(
    cluster: Cluster, group: str, wanted: Mapping[str, list[int]] | None
) -> dict[str, dict[int, GroupOffset]]:
    from kbroker.protocol.messages import offset_fetch

    def named(kind: Callable[..., Any]) -> list[Any] | None:
        if wanted is None:
            return None
        return [kind(name=name, partition_indexes=indexes) for name, indexes in wanted.items()]

    async def send(connection: BrokerConnection) -> tuple[int, dict[str, dict[int, GroupOffset]]]:
        response = await connection.send(
            OFFSET_FETCH,
            at_least=2,
            at_most=9,
            group_id=group,
            topics=named(offset_fetch.OffsetFetchRequestTopic),
            groups=[
                offset_fetch.OffsetFetchRequestGroup(
                    group_id=group, topics=named(offset_fetch.OffsetFetchRequestTopics)
                )
            ],
        )
        found = response.groups[0] if response.groups else response
        codes = (partition.error_code for topic in found.topics for partition in topic.partitions)
        return found.error_code or next((code for code in codes if code), 0), {
            topic.name: {
                partition.partition_index: GroupOffset(partition.committed_offset, partition.metadata or "")
                for partition in topic.partitions
                if partition.committed_offset != NO_OFFSET
            }
            for topic in found.topics
        }

    offsets: dict[str, dict[int, GroupOffset]] = await send_to_coordinator(cluster, group, send)
    return offsets


async def commit_offsets(cluster: Cluster, *, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    """Commits offsets without joining the group. Raises BrokerRefusal if the group has active members."""
    await commit_group_offsets(
        cluster, group, {topic: {index: GroupOffset(offset) for index, offset in offsets.items()}}
    )


async def delete_offsets(
    cluster: Cluster, *, group: str, topic: str, partitions: Iterable[int]
) -> dict[int, ErrorCode]:
    """Deletes the committed offsets of partitions. Returns partition -> error code.

    GROUP_SUBSCRIBED_TO_TOPIC: a member of the group reads the topic.
    """
    from kbroker.protocol.messages.offset_delete import OffsetDeleteRequestPartition, OffsetDeleteRequestTopic

    named = [OffsetDeleteRequestPartition(partition_index=index) for index in partitions]
    topics = [OffsetDeleteRequestTopic(name=topic, partitions=named)]

    async def send(connection: BrokerConnection) -> tuple[int, dict[int, ErrorCode]]:
        response = await connection.send(OFFSET_DELETE, group_id=group, topics=topics)
        return response.error_code, {
            partition.partition_index: error_code(partition.error_code)
            for topic_response in response.topics
            for partition in topic_response.partitions
        }

    codes: dict[int, ErrorCode] = await send_to_coordinator(cluster, group, send)
    return codes


async def commit_group_offsets(cluster: Cluster, group: str, offsets: CommittedOffsets) -> None:
    """Commits offsets of several topics in one request, without joining the group.

    Raises BrokerRefusal if the group has active members.
    """
    from kbroker.protocol.messages.offset_commit import OffsetCommitRequestPartition, OffsetCommitRequestTopic

    topics = [
        OffsetCommitRequestTopic(
            name=name,
            partitions=[
                OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=committed.offset, committed_metadata=committed.metadata
                )
                for index, committed in partitions.items()
            ],
        )
        for name, partitions in offsets.items()
    ]

    async def send(connection: BrokerConnection) -> tuple[int, None]:
        # Later versions name topics by id.
        response = await connection.send(OFFSET_COMMIT, at_least=2, at_most=9, group_id=group, topics=topics)
        codes = (partition.error_code for topic in response.topics for partition in topic.partitions)
        return next((code for code in codes if code), 0), None

    await send_to_coordinator(cluster, group, send)
