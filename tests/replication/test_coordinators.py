"""Coordinators move with the leaders of their partitions."""

from __future__ import annotations

from kbroker.names import CONSUMER_OFFSETS
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import offset_commit, offset_fetch
from tests.broker.wire import Client
from tests.replication.cluster import Cluster, eventually


async def commit(client: Client, offset: int) -> int:
    partition = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = offset_commit.OffsetCommitRequestTopic(name="orders", partitions=[partition])
    members = {"group_id": "readers", "generation_id_or_member_epoch": -1, "member_id": "", "topics": [topic]}
    response = await client.ask("OffsetCommit", 8, **members)
    return int(response.topics[0].partitions[0].error_code)


async def committed(client: Client) -> tuple[int, int]:
    topic = offset_fetch.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])
    response = await client.ask("OffsetFetch", 7, group_id="readers", topics=[topic])
    if response.error_code:
        return int(response.error_code), -1
    partition = response.topics[0].partitions[0]
    return int(partition.error_code), int(partition.committed_offset)


def is_coordinator(cluster: Cluster, broker_id: int) -> bool:
    shards = cluster.nodes[broker_id].groups.shards
    return 0 in shards.drivers and shards.drivers[0].is_loaded


async def test_committed_offsets_are_known_to_the_next_coordinator(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    cluster.add_topic(1, (1, 2), name=CONSUMER_OFFSETS, cleanup_policy="compact")
    await eventually(lambda: is_coordinator(cluster, 1))
    async with cluster.client(1) as first, cluster.client(2) as second:
        assert await commit(second, 7) == ErrorCode.NOT_COORDINATOR
        assert await commit(first, 7) == 0
        cluster.change(CONSUMER_OFFSETS, leader=2)
        assert await commit(first, 8) == ErrorCode.NOT_COORDINATOR
        await eventually(lambda: is_coordinator(cluster, 2))
        assert await committed(second) == (0, 7)
        assert await commit(second, 9) == 0
        cluster.change(CONSUMER_OFFSETS, leader=1)
        await eventually(lambda: is_coordinator(cluster, 1))
        assert await committed(first) == (0, 9)


async def test_what_no_other_replica_has_is_not_told_by_the_next_coordinator(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    cluster.add_topic(1, (1, 2), name=CONSUMER_OFFSETS, cleanup_policy="compact")
    await eventually(lambda: is_coordinator(cluster, 1))
    async with cluster.client(1) as first, cluster.client(1) as other:
        assert await commit(first, 7) == 0
        await cluster.nodes[2].kill()
        log = cluster.nodes[1].replica(CONSUMER_OFFSETS).log
        end = log.log_end_offset
        partition = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=8)
        topic = offset_commit.OffsetCommitRequestTopic(name="orders", partitions=[partition])
        members = {"group_id": "readers", "generation_id_or_member_epoch": -1, "member_id": "", "topics": [topic]}
        await first.send("OffsetCommit", 8, **members)
        await eventually(lambda: log.log_end_offset == end + 1)
        cluster.change(CONSUMER_OFFSETS, leader=1)  # the response goes on waiting
        cluster.change(CONSUMER_OFFSETS, leader=2)
        answer = (await first.receive()).topics[0].partitions[0].error_code
        assert answer == ErrorCode.NOT_COORDINATOR
        cluster.change(CONSUMER_OFFSETS, leader=1)
        await eventually(lambda: is_coordinator(cluster, 1))
        question = offset_fetch.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])
        await other.send("OffsetFetch", 7, group_id="readers", topics=[question])
        await cluster.start(2)
        assert (await other.receive()).topics[0].partitions[0].committed_offset == 8
        assert cluster.nodes[1].replica(CONSUMER_OFFSETS).high_watermark == end + 1
