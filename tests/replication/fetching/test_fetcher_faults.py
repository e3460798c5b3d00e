"""Failures of one partition or one connection do not affect others."""

from __future__ import annotations

import pytest

from kbroker.errors import StorageFailure
from kbroker.log.append_result import AppendResult
from kbroker.log.files.checkpoint import read_offsets
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import fetch
from kbroker.protocol.record_batch import InvalidBatch, ReadBuffer
from kbroker.replication.partition import Partition
from tests.broker.wire import Client
from tests.log.batches import make_batch
from tests.replication.cluster import Cluster, Node, eventually


async def send(cluster: Cluster, topic: str, value: bytes, *, acks: int = 1) -> None:
    async with cluster.client(1) as client:
        assert (await client.produce(topic, make_batch(value), acks=acks)).error_code == 0


@pytest.mark.parametrize(
    "failure",
    [
        StorageFailure("no room", is_full=True),
        InvalidBatch(ErrorCode.CORRUPT_MESSAGE, "rotten"),
        RuntimeError("a bug of ours"),
    ],
)
async def test_a_partition_that_cannot_be_written_rests_and_the_others_go_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2), name="bad")
    cluster.add_topic(1, (1, 2), name="good")
    bad = cluster.nodes[2].replica("bad")
    failures = 0
    append_fetched = Partition.append_fetched

    def fail(partition: Partition, records: ReadBuffer, high_watermark: int, log_start_offset: int) -> None:
        nonlocal failures
        if partition is bad and records and failures < 3:
            failures += 1
            raise failure
        append_fetched(partition, records, high_watermark, log_start_offset)

    monkeypatch.setattr(Partition, "append_fetched", fail)
    await send(cluster, "bad", b"a")
    await send(cluster, "good", b"a", acks=-1)
    await eventually(lambda: cluster.nodes[2].values("bad") == [b"a"])
    assert failures == 3


async def test_a_broken_disk_stops_what_is_on_it_until_the_restart(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    follower = cluster.nodes[2].replica()
    (gate,) = cluster.nodes[2].replicas.log_dirs.gates.values()
    gate.close(StorageFailure("EIO"))
    await send(cluster, "orders", b"a")
    (fetcher,) = cluster.nodes[2].fetchers._fetchers.values()
    (followed,) = fetcher._states.values()
    await eventually(lambda: followed.error is ErrorCode.KAFKA_STORAGE_ERROR)
    assert follower.log.log_end_offset == 0


async def test_followers_of_a_leader_that_comes_back_elsewhere_find_it(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    await send(cluster, "orders", b"a", acks=-1)
    await cluster.nodes[1].kill()
    await cluster.start(1)  # on another port, which the image brings
    cluster.change(leader=1)
    await send(cluster, "orders", b"b", acks=-1)
    assert cluster.nodes[2].values() == [b"a", b"b"]


async def test_the_recovery_point_of_a_truncated_log_is_on_disk_before_the_next_append(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    await send(cluster, "orders", b"a", acks=-1)
    await cluster.nodes[2].kill()
    await send(cluster, "orders", b"lost")
    await send(cluster, "orders", b"lost too")
    leader = cluster.nodes[1]
    leader.replica().log.flush(0)
    await leader.replicas.log_dirs.checkpoint()
    assert recovery_point_on_disk(leader) == 3
    await cluster.kill(1)
    await cluster.start(2)
    cluster.change(leader=2, isr=(2,))
    async with cluster.client(2) as client:
        assert (await client.produce("orders", make_batch(b"b"), acks=1)).error_code == 0
    seen: list[int] = []
    append_fetched = Partition.append_fetched

    def note(partition: Partition, records: ReadBuffer, high_watermark: int, log_start_offset: int) -> None:
        if records:
            seen.append(recovery_point_on_disk(cluster.nodes[1]))
        append_fetched(partition, records, high_watermark, log_start_offset)

    monkeypatch.setattr(Partition, "append_fetched", note)
    await cluster.start(1)
    await eventually(lambda: cluster.nodes[1].values() == [b"a", b"b"])
    assert seen == [1]


def recovery_point_on_disk(node: Node) -> int:
    (directory,) = node.replicas.log_dirs.directories
    path = f"{directory.path}/recovery-point-offset-checkpoint"
    return read_offsets(directory.files.filesystem, path)["orders", 0]


async def test_a_session_that_the_leader_has_forgotten_begins_anew(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    await send(cluster, "orders", b"a", acks=-1)
    sessions = cluster.nodes[1].context.fetch_sessions
    assert len(sessions) == 1
    for session_id in list(sessions._sessions):
        sessions.end(session_id)
    await send(cluster, "orders", b"b", acks=-1)
    assert len(sessions) == 1


async def replica_fetch(client: Client, topic_id: bytes, *, replica: int, epoch: int = 0, offset: int = 0) -> int:
    asked = fetch.FetchPartition(
        partition=0, current_leader_epoch=epoch, fetch_offset=offset, partition_max_bytes=1 << 20
    )
    response = await client.ask(
        "Fetch",
        17,
        replica_state=fetch.ReplicaState(replica_id=replica, replica_epoch=1),
        max_wait_ms=0,
        min_bytes=1,
        topics=[fetch.FetchTopic(topic_id=topic_id, partitions=[asked])],
    )
    return int(response.responses[0].partitions[0].error_code)


async def test_followers_are_fenced_by_epoch_and_strangers_are_not_served(cluster: Cluster) -> None:
    await cluster.start(1)
    cluster.add_topic(1, (1, 2))
    cluster.change(leader=1)
    topic_id = cluster.image.topics["orders"].id
    async with cluster.client(1) as client:
        assert await replica_fetch(client, topic_id, replica=2, epoch=1) == 0
        assert await replica_fetch(client, topic_id, replica=2, epoch=0) == ErrorCode.FENCED_LEADER_EPOCH
        assert await replica_fetch(client, topic_id, replica=2, epoch=2) == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert await replica_fetch(client, topic_id, replica=3, epoch=1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await replica_fetch(client, topic_id, replica=2, epoch=1, offset=9) == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_nothing_waits_where_nothing_is_followed(cluster: Cluster) -> None:
    await cluster.start(1)
    cluster.add_topic(1, (1,), name="alone")
    assert not cluster.nodes[1].fetchers._fetchers
    assert not cluster.nodes[1].peers.replicated
    assert cluster.nodes[1].replica("alone").commits_at_once
    result = cluster.nodes[1].replica("alone").append_internal(make_batch(b"v"), 0)
    assert result == AppendResult(ErrorCode.NONE, 0, 0, -1, 0)
