"""Partitions with several replicas: replication, high watermarks, changes of leaders, and responses to clients."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kbroker.controller.changes import BrokerRemoved
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import delete_records
from kbroker.web.topic_totals import Traffic
from tests.broker.wire import Client, produce_members
from tests.log.batches import make_batch
from tests.replication.cluster import Cluster, eventually


async def produce(client: Client, *values: bytes, acks: int = -1, topic: str = "orders") -> Any:
    return await client.produce(topic, make_batch(*values), acks=acks)


async def send(cluster: Cluster, broker_id: int, *values: bytes, acks: int = -1) -> None:
    async with cluster.client(broker_id) as client:
        for value in values:
            assert (await produce(client, value, acks=acks)).error_code == 0


async def read(cluster: Cluster, broker_id: int, topic: str = "orders") -> list[bytes | None]:
    async with cluster.client(broker_id) as client:
        return [record.value for record in await client.read_all(topic)]


def names(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def test_what_is_acknowledged_is_on_every_replica_in_sync(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    cluster.add_topic(1, (1, 2, 3))
    await send(cluster, 1, *names(20))
    for node in cluster.nodes.values():
        assert node.values() == names(20)
    assert await read(cluster, 1) == names(20)
    await eventually(lambda: all(node.high_watermark == 20 for node in cluster.nodes.values()))


async def test_bytes_for_replicas_that_a_reassignment_adds_are_counted(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    cluster.add_topic(1, (1, 2))
    await send(cluster, 1, *names(10))
    cluster.change(replicas=(1, 2, 3), adding_replicas=(3,))
    await eventually(lambda: cluster.nodes[3].end == 10)
    moved = cluster.nodes[1].replica().reassignment_bytes_out
    assert moved == cluster.nodes[3].replica().reassignment_bytes_in == cluster.nodes[1].replica().log.size_bytes
    assert cluster.nodes[1].replica().replicated_bytes == 2 * moved
    assert cluster.nodes[2].replica().reassignment_bytes_in == 0
    total = Traffic()
    for node in cluster.nodes.values():
        total.add(node.replica())
    assert (total.reassignment_bytes_in, total.reassignment_bytes_out) == (moved, moved)
    cluster.change(adding_replicas=())
    await send(cluster, 1, *names(5))
    await eventually(lambda: cluster.nodes[3].end == 15)
    assert cluster.nodes[1].replica().reassignment_bytes_out == moved
    assert cluster.nodes[3].replica().reassignment_bytes_in == moved


async def test_a_follower_serves_neither_producers_nor_consumers_of_old_versions(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    async with cluster.client(2) as client:
        assert (await produce(client, b"no")).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await client.fetch("orders", 0, version=10)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await client.list_offset("orders", -1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await client.delete_records("orders", 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await produce(client, b"no", topic="missing")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_after_the_leader_is_killed_everything_acknowledged_is_there_once_and_in_order(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    cluster.add_topic(1, (1, 2, 3))
    await send(cluster, 1, *names(50))
    await cluster.kill(1)
    cluster.change(leader=2, isr=(2, 3))
    await send(cluster, 2, *names(50, 50))
    assert await read(cluster, 2) == names(100)
    assert cluster.nodes[3].values() == names(100)
    assert [entry.epoch for entry in cluster.nodes[3].replica().log.leader_epochs.entries] == [0, 1]


async def test_each_record_counts_once_in_a_cluster_and_replication_counts_apart(cluster: Cluster) -> None:
    def written(broker_id: int) -> tuple[int, int]:
        partition = cluster.nodes[broker_id].replica()
        return partition.leader_writes.total(partition.log_handle)

    def size(broker_id: int) -> int:
        return cluster.nodes[broker_id].replica().log.appended_bytes

    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    await send(cluster, 1, *names(5))
    first = size(1)
    assert (written(1), written(2)) == ((5, first), (0, 0))
    cluster.change(leader=2)
    await send(cluster, 2, *names(3, 5))
    await eventually(lambda: cluster.nodes[1].end == 8)
    assert (written(1), written(2)) == ((5, first), (3, size(2) - first))
    assert await read(cluster, 2) == names(8)
    replicas = [cluster.nodes[broker_id].replica() for broker_id in (1, 2)]
    assert [replica.fetched_bytes for replica in replicas] == [0, size(2)]
    assert [replica.replicated_bytes for replica in replicas] == [first, size(2) - first]
    cluster.change(leader=1)
    await send(cluster, 1, *names(2, 8))
    await eventually(lambda: cluster.nodes[2].end == 10)
    assert (written(1)[0], written(2)[0]) == (7, 3)


async def test_acks_all_waits_for_followers_and_acks_1_for_the_leader_alone(cluster: Cluster) -> None:
    await cluster.start(1)
    cluster.add_topic(1, (1, 2))
    async with cluster.client(1) as client:
        assert (await produce(client, b"a", acks=1)).error_code == 0
        assert cluster.nodes[1].high_watermark == 0
        await client.send("Produce", 9, **produce_members("orders", make_batch(b"b"), acks=-1) | {"timeout_ms": 1})
        assert (await client.receive()).responses[0].partition_responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        await client.send("Produce", 9, **produce_members("orders", make_batch(b"c"), acks=-1))
        await eventually(lambda: cluster.nodes[1].end == 3)
        await cluster.start(2)
        assert (await client.receive()).responses[0].partition_responses[0].error_code == 0
    assert cluster.nodes[2].values() == [b"a", b"b", b"c"]


async def test_too_few_in_sync_refuse_acks_all_before_anything_is_written(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2), isr=(1,), min_insync_replicas="2")
    cluster.is_deciding = False
    async with cluster.client(1) as client:
        assert (await produce(client, b"a")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert cluster.nodes[1].end == 0
        assert (await produce(client, b"a", acks=1)).error_code == 0
        # Consumers do not see records that too few replicas have.
        await eventually(lambda: cluster.nodes[2].end == 1)
        assert cluster.nodes[1].high_watermark == 0
        cluster.change(isr=(1, 2))
        await eventually(lambda: cluster.nodes[1].high_watermark == 1)
        assert (await produce(client, b"b")).error_code == 0


async def test_producers_that_wait_are_sent_to_the_new_leader(cluster: Cluster) -> None:
    await cluster.start(1)
    cluster.add_topic(1, (1, 2))
    async with cluster.client(1) as client:
        await client.send("Produce", 9, **produce_members("orders", make_batch(b"b"), acks=-1))
        await eventually(lambda: cluster.nodes[1].end == 1)
        cluster.change(leader=2, isr=(2,))
        answer = (await client.receive()).responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_producers_that_wait_go_on_waiting_when_their_leader_gets_a_new_epoch(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2, 3))  # broker 3 never runs
    async with cluster.client(1) as client:
        await client.send("Produce", 9, **produce_members("orders", make_batch(b"a"), acks=-1))
        await eventually(lambda: cluster.nodes[2].end == 1)
        cluster.change(leader=1, isr=(1, 2))
        answer = (await client.receive()).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, 0)
    assert cluster.nodes[1].values() == cluster.nodes[2].values() == [b"a"]


async def test_consumers_that_wait_go_on_waiting_when_their_leader_gets_a_new_epoch(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    async with cluster.client(1) as consumer, trio.open_nursery() as nursery:
        answers: list[Any] = []

        async def consume() -> None:
            answers.append(await consumer.fetch("orders", 0, max_wait_ms=20_000))

        nursery.start_soon(consume)
        await eventually(lambda: bool(cluster.nodes[1].replica().fetch_waiters))
        cluster.change(leader=1)
        await send(cluster, 1, b"a")
    assert (answers[0].error_code, answers[0].high_watermark) == (0, 1)


async def test_deletions_that_wait_go_on_waiting_when_their_leader_gets_a_new_epoch(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    await send(cluster, 1, *names(10))
    await cluster.nodes[2].kill()
    async with cluster.client(1) as client, trio.open_nursery() as nursery:
        answers: list[Any] = []

        async def delete() -> None:
            answers.append(await client.delete_records("orders", 6))

        nursery.start_soon(delete)
        await eventually(lambda: cluster.nodes[1].replica().log.log_start_offset == 6)
        cluster.change(leader=1)
        assert not answers
        await cluster.start(2)
    assert (answers[0].error_code, answers[0].low_watermark) == (0, 6)


async def test_producers_that_wait_for_followers_are_answered_when_the_leader_is_the_only_replica(
    cluster: Cluster,
) -> None:
    await cluster.start(1)
    for acks, flush_messages in ((-1, "1000"), (-1, "1"), (1, "1")):
        topic = f"orders{acks}{flush_messages}"
        cluster.add_topic(1, (1, 2), name=topic, flush_messages=flush_messages)
        async with cluster.client(1) as client:
            await client.send("Produce", 9, **produce_members(topic, make_batch(b"a"), acks=acks))
            await eventually(lambda topic=topic: cluster.nodes[1].replica(topic).log.log_end_offset == 1)  # type: ignore[misc]
            cluster.change(topic, leader=1, isr=(1,), replicas=(1,))
            assert (await client.receive()).responses[0].partition_responses[0].error_code == 0
        await eventually(lambda topic=topic: cluster.nodes[1].replica(topic).high_watermark == 1)  # type: ignore[misc]


async def test_a_follower_that_was_away_catches_up_and_comes_back_into_the_in_sync_set(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    await send(cluster, 1, *names(5))
    await cluster.kill(2)
    cluster.change(isr=(1,))
    await send(cluster, 1, *names(20, 5))
    await cluster.start(2)
    await eventually(lambda: set(cluster.state().isr) == {1, 2})
    assert cluster.nodes[2].values() == names(25)
    assert cluster.nodes[1].replica().insync_replicas == 2
    peers = cluster.nodes[1].peers
    assert (peers.isr_expands, peers.isr_shrinks) == (1, 1)


async def test_a_follower_that_stops_fetching_leaves_the_in_sync_set(cluster: Cluster) -> None:
    await cluster.start(1, 2, replica_lag_time_max_ms=100)
    cluster.add_topic(1, (1, 2))
    await send(cluster, 1, b"a")
    await cluster.nodes[2].kill()
    await send(cluster, 1, b"b")  # acknowledged only when the in-sync set is the leader alone
    assert cluster.state().isr == (1,)
    assert cluster.nodes[1].peers.isr_shrinks >= 1  # on a busy machine it may have lagged before
    assert await read(cluster, 1) == [b"a", b"b"]


async def test_a_follower_with_another_history_cuts_it_off(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    await send(cluster, 1, *names(3))
    await cluster.nodes[2].kill()
    await send(cluster, 1, b"lost", b"lost too", acks=1)
    await cluster.kill(1)
    await cluster.start(2)
    cluster.change(leader=2, isr=(2,))
    await send(cluster, 2, *names(3, 3))
    await cluster.start(1)
    await eventually(lambda: set(cluster.state().isr) == {1, 2})
    assert cluster.nodes[1].values() == cluster.nodes[2].values() == names(6)


async def test_a_follower_behind_the_leaders_start_begins_anew_there(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    await send(cluster, 1, *names(3))
    await cluster.kill(2)
    cluster.change(isr=(1,))
    await send(cluster, 1, *names(10, 3))
    async with cluster.client(1) as client:
        assert (await client.delete_records("orders", 8)).low_watermark == 8
    await cluster.start(2)
    await eventually(lambda: cluster.nodes[2].end == 13)
    assert cluster.nodes[2].replica().log.log_start_offset == 8
    assert cluster.nodes[2].values() == names(5, 8)


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_follower_copies_a_log_that_starts_inside_a_batch(cluster: Cluster, is_late: bool) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2), isr=(1, 2) if is_late else (1,))
    if is_late:
        await send(cluster, 1, *names(3))
    await cluster.kill(2)
    cluster.change(isr=(1,))
    async with cluster.client(1) as client:
        end = cluster.nodes[1].end
        assert (await produce(client, *names(10))).error_code == 0
        assert (await client.delete_records("orders", end + 7)).low_watermark == end + 7
    await cluster.start(2)
    await eventually(lambda: set(cluster.state().isr) == {1, 2})
    await send(cluster, 1, b"10")
    follower = cluster.nodes[2].replica().log
    assert (follower.log_start_offset, follower.log_end_offset) == (end + 7, end + 11)
    assert cluster.nodes[2].values() == names(4, 7)
    assert [entry.start_offset for entry in follower.leader_epochs.entries] == [end + 7]


async def test_deleted_records_are_gone_from_followers_when_the_answer_comes(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    cluster.add_topic(1, (1, 2, 3))
    await send(cluster, 1, *names(10))
    async with cluster.client(1) as client:
        answer = await client.delete_records("orders", 6)
    assert (answer.error_code, answer.low_watermark) == (0, 6)
    assert [node.replica().log.log_start_offset for node in cluster.nodes.values()] == [6, 6, 6]


async def test_whoever_waits_for_deleted_records_is_told_when_the_leader_goes(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    await send(cluster, 1, *names(10))
    await cluster.nodes[2].kill()
    async with cluster.client(1) as client, trio.open_nursery() as nursery:
        answers: list[Any] = []

        async def delete() -> None:
            answers.append(await client.delete_records("orders", 6))

        nursery.start_soon(delete)
        await eventually(lambda: cluster.nodes[1].replica().log.log_start_offset == 6)
        assert not answers
        cluster.change(leader=2)
    assert answers[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_followers_that_do_not_delete_in_time_are_told_of(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    await send(cluster, 1, *names(10))
    await cluster.nodes[2].kill()
    async with cluster.client(1) as client:
        asked = delete_records.DeleteRecordsPartition(partition_index=0, offset=6)
        topics = [delete_records.DeleteRecordsTopic(name="orders", partitions=[asked])]
        response = await client.ask("DeleteRecords", 2, topics=topics, timeout_ms=1)
        assert response.topics[0].partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        # A broker that is not alive does not hold back the high watermark.
        cluster.tell(BrokerRemoved(2))
        assert (await client.delete_records("orders", 7)).low_watermark == 7


async def test_a_stale_leader_cannot_commit_anything(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    cluster.add_topic(1, (1, 2, 3))
    await send(cluster, 1, *names(3))
    cluster.change(leader=2, but=(1,))  # it does not hear of it
    async with cluster.client(1) as client:
        await client.send("Produce", 9, **produce_members("orders", make_batch(b"late"), acks=-1))
        await eventually(lambda: cluster.nodes[1].end == 4)
        await eventually(lambda: cluster.nodes[3].replica().leader_id == 2)
        assert cluster.nodes[1].high_watermark == 3
        cluster.change(leader=2, isr=(2, 3))
        answer = (await client.receive()).responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await send(cluster, 2, *names(3, 3))
    await eventually(lambda: cluster.nodes[1].values() == names(6))


async def test_a_replica_that_is_moved_away_is_deleted(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    await send(cluster, 1, b"a")
    cluster.change(replicas=(1,), isr=(1,))
    assert cluster.nodes[2].table.replica("orders", 0) is None
    await send(cluster, 1, b"b")
    assert cluster.nodes[1].replica().commits_at_once
    assert await read(cluster, 1) == [b"a", b"b"]


async def test_a_refused_addition_is_proposed_again(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.refusal = ErrorCode.INELIGIBLE_REPLICA
    cluster.add_topic(1, (1, 2), isr=(1,))
    await send(cluster, 1, b"a", acks=1)
    await eventually(lambda: len(cluster.proposed) > 1)
    assert cluster.state().isr == (1,)
    cluster.refusal = None
    await send(cluster, 1, b"b", acks=1)
    await eventually(lambda: cluster.state().isr == (1, 2))


async def test_what_goes_to_the_disk_with_each_write_is_acknowledged_when_every_disk_has_it(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2), flush_messages="1")
    await send(cluster, 1, *names(5))
    for node in cluster.nodes.values():
        assert node.replica().log.recovery_point == 5
    await cluster.nodes[2].kill()
    await send(cluster, 1, b"alone", acks=1)  # the leader's own disk is enough
    assert cluster.nodes[1].high_watermark == 5


async def test_consumers_wait_for_what_is_committed(cluster: Cluster) -> None:
    await cluster.start(1)
    cluster.add_topic(1, (1, 2))
    async with cluster.client(1) as client, cluster.client(1) as consumer, trio.open_nursery() as nursery:
        answers: list[Any] = []

        async def consume() -> None:
            answers.append(await consumer.fetch("orders", 0, max_wait_ms=20_000))

        nursery.start_soon(consume)
        await eventually(lambda: bool(cluster.nodes[1].replica().fetch_waiters))
        assert (await produce(client, b"a", acks=1)).error_code == 0
        assert not answers
        await cluster.start(2)
    assert answers[0].high_watermark == 1
    assert answers[0].records


async def test_a_leader_that_wrote_nothing_follows_the_next_one(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    await send(cluster, 1, *names(3))
    cluster.change(leader=2)
    assert cluster.nodes[2].replica().log.leader_epochs.latest == 1
    cluster.change(leader=1)
    await send(cluster, 1, *names(3, 3))
    assert cluster.nodes[2].values() == names(6)
    assert [entry.epoch for entry in cluster.nodes[2].replica().log.leader_epochs.entries] == [0, 2]


async def test_a_new_leader_tells_no_end_before_it_knows_what_is_committed(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    await send(cluster, 1, *names(3))
    await cluster.nodes[2].kill()
    await send(cluster, 1, b"3", acks=1)
    cluster.change(leader=1)
    async with cluster.client(1) as client:
        assert (await client.list_offset("orders", -1)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert (await client.list_offset("orders", -1, version=4)).error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert (await client.list_offset("orders", -2)).offset == 0
        await cluster.start(2)
        await eventually(lambda: cluster.nodes[1].high_watermark == 4)
        assert (await client.list_offset("orders", -1)).offset == 4


async def test_followers_that_wait_for_other_partitions_hear_at_once_of_a_new_one(cluster: Cluster) -> None:
    await cluster.start(1, 2, replica_fetch_wait_max_ms=600_000)
    cluster.add_topic(1, (1, 2), name="quiet")
    await eventually(lambda: bool(cluster.nodes[1].replica("quiet").waiters()))
    cluster.add_topic(1, (1, 2))
    await send(cluster, 1, b"a")
    assert cluster.nodes[2].values() == [b"a"]
