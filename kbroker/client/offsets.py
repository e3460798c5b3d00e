"""ListOffsets, OffsetFetch and OffsetCommit: where partitions begin and end, and how far a group has come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from kbroker.client.cluster import Answer, Cluster, Topic
from kbroker.client.connection import Connection
from kbroker.client.coordinator import ask_coordinator
from kbroker.protocol.registry import api

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "NO_OFFSET",
    "CommittedOffset",
    "FoundOffset",
    "GroupOffsets",
    "commit_group_offsets",
    "commit_offsets",
    "committed_offsets",
    "group_offsets",
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


class CommittedOffset(NamedTuple):
    offset: int
    metadata: str = ""
    """What the committer wrote beside it."""


GroupOffsets = Mapping[str, Mapping[int, CommittedOffset]]
"""Topic -> partition -> how far a group has come there."""


async def group_offsets(cluster: Cluster, group: str) -> dict[str, dict[int, CommittedOffset]]:
    """Everything that the group has committed; nothing where there is no such group."""
    return await _fetch_offsets(cluster, group, None)


async def committed_offsets(cluster: Cluster, group: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Partition -> the group's offset; those that it has none for are left out."""
    found = await _fetch_offsets(cluster, group, {topic: list(partitions)})
    return {index: committed.offset for index, committed in found.get(topic, {}).items()}


async def _fetch_offsets(
    cluster: Cluster, group: str, wanted: Mapping[str, list[int]] | None
) -> dict[str, dict[int, CommittedOffset]]:
    from kbroker.protocol.messages import offset_fetch

    def named(kind: Callable[..., Any]) -> list[Any] | None:
        if wanted is None:
            return None
        return [kind(name=name, partition_indexes=indexes) for name, indexes in wanted.items()]

    async def ask(connection: Connection) -> tuple[int, dict[str, dict[int, CommittedOffset]]]:
        response = await connection.ask(
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
        answered = response.groups[0] if response.groups else response
        codes = (each.error_code for topic in answered.topics for each in topic.partitions)
        return answered.error_code or next((code for code in codes if code), 0), {
            topic.name: {
                each.partition_index: CommittedOffset(each.committed_offset, each.metadata or "")
                for each in topic.partitions
                if each.committed_offset != NO_OFFSET
            }
            for topic in answered.topics
        }

    offsets: dict[str, dict[int, CommittedOffset]] = await ask_coordinator(cluster, group, ask)
    return offsets


async def commit_offsets(cluster: Cluster, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    """As somebody who is no member: allowed while the group has none."""
    await commit_group_offsets(
        cluster, group, {topic: {index: CommittedOffset(offset) for index, offset in offsets.items()}}
    )


async def commit_group_offsets(cluster: Cluster, group: str, offsets: GroupOffsets) -> None:
    """All in one request, as somebody who is no member: allowed while the group has none."""
    from kbroker.protocol.messages.offset_commit import OffsetCommitRequestPartition, OffsetCommitRequestTopic

    topics = [
        OffsetCommitRequestTopic(
            name=name,
            partitions=[
                OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=each.offset, committed_metadata=each.metadata
                )
                for index, each in partitions.items()
            ],
        )
        for name, partitions in offsets.items()
    ]

    async def ask(connection: Connection) -> tuple[int, None]:
        # Up to v9: later ones name topics by id.
        response = await connection.ask(OFFSET_COMMIT, at_least=2, at_most=9, group_id=group, topics=topics)
        codes = (each.error_code for answer in response.topics for each in answer.partitions)
        return next((code for code in codes if code), 0), None

    await ask_coordinator(cluster, group, ask)
