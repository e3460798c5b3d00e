"""Consumers that read from followers (KIP-392): where the leader sends them, and what a follower answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from kbroker.config.broker import RACK_AWARE_SELECTOR
from kbroker.controller.changes import BrokerAdded, BrokerRemoved
from kbroker.controller.image import BrokerRegistration
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import list_offsets
from tests.broker.wire import Client, fetch_members, records_of
from tests.log.batches import make_batch
from tests.replication.cluster import Cluster, eventually
from tests.replication.test_cluster import names, send

RACKS = {1: "north", 2: "east", 3: "south"}
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
EVERY_VERSION = pytest.mark.parametrize("version", [11, 12, 13, 18])


async def in_racks(cluster: Cluster, *, count: int = 3, selector: str = RACK_AWARE_SELECTOR) -> None:
    """Starts brokers in RACKS. Broker 1 leads `orders`, which has records 0 to 4 on every replica."""
    for broker_id in list(RACKS)[:count]:
        await cluster.start(broker_id, broker_rack=RACKS[broker_id], replica_selector_class=selector)
    cluster.add_topic(1, tuple(RACKS)[:count])
    await send(cluster, 1, *names(5))
    await all_visible(cluster)


async def all_visible(cluster: Cluster, offset: int = 5) -> None:
    await eventually(lambda: all(node.high_watermark == offset for node in cluster.nodes.values() if node.is_up))


def values_of(answer: Any) -> list[bytes | None]:
    return [record.value for record in records_of(answer)]


def key_of(cluster: Cluster, version: int) -> str | bytes:
    return cluster.image.topics["orders"].id if version >= 13 else "orders"


async def fetch_at(
    cluster: Cluster, client: Client, offset: int, *, version: int = 11, epoch: int = -1, **members: Any
) -> Any:
    """Fetches in any version, with a leader epoch. Returns the response for the partition."""
    asked = fetch_members({(key_of(cluster, version), 0): offset}, **members)
    asked["topics"][0].partitions[0].current_leader_epoch = epoch
    return (await client.ask("Fetch", version, **asked)).responses[0].partitions[0]


# Where a leader sends a consumer


@EVERY_VERSION
async def test_a_leader_sends_a_consumer_to_the_follower_in_its_rack(cluster: Cluster, version: int) -> None:
    await in_racks(cluster)
    async with cluster.client(1) as leader, cluster.client(2) as follower:
        answer = await fetch_at(cluster, leader, 1, version=version, rack_id="east", isolation_level=1)
        assert (answer.error_code, answer.preferred_read_replica) == (0, 2)
        assert (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset) == (5, 5, 0)
        assert (answer.records, answer.aborted_transactions) == (b"", None)
        answer = await fetch_at(cluster, follower, 1, version=version, rack_id="east")
        assert (answer.preferred_read_replica, values_of(answer)) == (-1, names(4, 1))


@pytest.mark.parametrize(("version", "rack_id"), [(11, ""), (11, "north"), (11, "west"), (10, "")])
async def test_other_consumers_read_from_the_leader(cluster: Cluster, version: int, rack_id: str) -> None:
    await in_racks(cluster)
    async with cluster.client(1) as leader:
        for _ in range(3):  # once more when it is recognised
            answer = await leader.fetch("orders", 0, version=version, rack_id=rack_id)
            assert (answer.preferred_read_replica, values_of(answer)) == (-1, names(5))


async def test_the_leader_selector_is_the_leader(cluster: Cluster) -> None:
    await in_racks(cluster, selector="org.apache.kafka.common.replica.LeaderSelector")
    async with cluster.client(1) as leader:
        assert values_of(await leader.fetch("orders", 0, rack_id="east")) == names(5)


async def test_a_consumer_is_sent_away_at_once_and_with_all_other_partitions(cluster: Cluster) -> None:
    await in_racks(cluster)
    cluster.add_topic(1, (1,), name="alone")
    async with cluster.client(1) as leader:
        offsets = fetch_members({("alone", 0): 0, ("orders", 0): 5}, max_wait_ms=20_000, rack_id="east")
        with trio.fail_after(15):  # before the end of the wait that the consumer allows
            answer = await leader.ask("Fetch", 11, **offsets)
    assert [topic.partitions[0].preferred_read_replica for topic in answer.responses] == [-1, 2]


async def test_a_consumer_is_sent_away_in_every_fetch_of_its_session(cluster: Cluster) -> None:
    await in_racks(cluster)
    async with cluster.client(1) as leader:
        members = fetch_members({("orders", 0): 0}, rack_id="east")
        answer = await leader.ask("Fetch", 12, session_epoch=0, **members)
        for epoch in (1, 2):
            later = fetch_members({}, rack_id="east", session_id=answer.session_id, session_epoch=epoch)
            again = await leader.ask("Fetch", 12, **later)
            assert again.responses[0].partitions[0].preferred_read_replica == 2


async def reads_here(cluster: Cluster, offset: int = 0) -> None:
    async with cluster.client(1) as leader:
        answer = await leader.fetch("orders", offset, rack_id="east")
        assert (answer.preferred_read_replica, values_of(answer)) == (-1, names(5 - offset, offset))


async def test_a_follower_that_is_not_in_sync_is_not_selected(cluster: Cluster) -> None:
    await in_racks(cluster)
    cluster.is_deciding = False
    cluster.change(isr=(1, 3))
    await reads_here(cluster)
    cluster.change(isr=(1, 2, 3))
    async with cluster.client(1) as leader:
        assert (await leader.fetch("orders", 0, rack_id="east")).preferred_read_replica == 2


async def test_a_follower_that_is_not_alive_is_not_selected(cluster: Cluster) -> None:
    await in_racks(cluster)
    cluster.tell(BrokerRemoved(2), but=(2,))
    await reads_here(cluster)


async def test_a_follower_without_the_clients_listener_is_not_selected(cluster: Cluster) -> None:
    await in_racks(cluster)
    endpoint = cluster.image.brokers[2].endpoints[0]
    cluster.tell(BrokerAdded(BrokerRegistration(2, 2, (endpoint._replace(name="INTERNAL"),), "east")), but=(2,))
    await reads_here(cluster)


async def test_a_follower_that_lacks_the_offset_is_not_selected(cluster: Cluster) -> None:
    await in_racks(cluster)
    async with cluster.client(1) as leader:
        assert (await leader.fetch("orders", 5, rack_id="east")).preferred_read_replica == 2
        answer = await leader.fetch("orders", 6, rack_id="east")
        assert (answer.error_code, answer.preferred_read_replica) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert (await leader.delete_records("orders", 3)).error_code == 0
        await eventually(lambda: cluster.nodes[2].replica().log.log_start_offset == 3)
        answer = await leader.fetch("orders", 2, rack_id="east")
        assert (answer.error_code, answer.preferred_read_replica) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert (await leader.fetch("orders", 3, rack_id="east")).preferred_read_replica == 2


async def test_a_client_with_another_leader_epoch_is_refused_before_a_replica_is_selected(cluster: Cluster) -> None:
    await in_racks(cluster)
    cluster.change(leader=1)
    async with cluster.client(1) as leader:
        for epoch, code in ((0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)):
            answer = await fetch_at(cluster, leader, 0, epoch=epoch, rack_id="east")
            assert (answer.error_code, answer.preferred_read_replica) == (code, -1)


async def test_a_consumer_that_the_leader_knows_is_sent_away_when_a_follower_is_in_sync_again(cluster: Cluster) -> None:
    await in_racks(cluster)
    cluster.is_deciding = False
    cluster.change(isr=(1, 3))
    async with cluster.client(1) as leader:
        for _ in range(3):
            assert values_of(await leader.fetch("orders", 0, rack_id="east")) == names(5)
        cluster.change(isr=(1, 2, 3))
        assert (await leader.fetch("orders", 0, rack_id="east")).preferred_read_replica == 2


# What a follower answers


@EVERY_VERSION
async def test_a_follower_serves_consumers_without_any_selector(cluster: Cluster, version: int) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    await send(cluster, 1, *names(5))
    await all_visible(cluster)
    before = cluster.nodes[2].replica().fetched_bytes
    async with cluster.client(2) as follower:
        for offset in (0, 0, 3, 4):  # later ones are recognised
            answer = await fetch_at(cluster, follower, offset, version=version)
            assert (answer.high_watermark, values_of(answer)) == (5, names(5 - offset, offset))
    assert cluster.nodes[2].replica().fetched_bytes > before


async def test_a_follower_serves_the_next_fetches_of_a_session(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    await send(cluster, 1, *names(3))
    await all_visible(cluster, 3)
    topic_id = cluster.image.topics["orders"].id
    async with cluster.client(2) as follower:
        answer = await follower.ask("Fetch", 17, session_epoch=0, **fetch_members({(topic_id, 0): 0}))
        for epoch, offset in ((1, 1), (2, 2), (3, 0)):
            members = fetch_members({(topic_id, 0): offset}, session_id=answer.session_id, session_epoch=epoch)
            again = await follower.ask("Fetch", 17, **members)
            assert values_of(again.responses[0].partitions[0]) == names(3 - offset, offset)
        members = fetch_members({(topic_id, 0): 3}, session_id=answer.session_id, session_epoch=4)
        assert (await follower.ask("Fetch", 17, **members)).responses == []


async def test_another_broker_cannot_copy_from_a_follower(cluster: Cluster) -> None:
    await in_racks(cluster)
    async with cluster.client(2) as follower:
        assert (await follower.fetch("orders", 0, replica_id=3)).error_code == NOT_LEADER


@pytest.mark.parametrize("version", [9, 11])
async def test_a_follower_compares_the_leader_epoch_first(cluster: Cluster, version: int) -> None:
    await in_racks(cluster)
    cluster.change(leader=1)
    async with cluster.client(2) as follower:
        for epoch, code in ((0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)):
            answer = await fetch_at(cluster, follower, 0, version=version, epoch=epoch)
            assert (answer.error_code, answer.high_watermark) == (code, -1)
            asked = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=epoch)
            topics = [list_offsets.ListOffsetsTopic(name="orders", partitions=[asked])]
            listed = await follower.ask("ListOffsets", 7, replica_id=-1, topics=topics)
            assert listed.topics[0].partitions[0].error_code == code
        expected = ErrorCode.NONE if version >= 11 else NOT_LEADER
        assert (await fetch_at(cluster, follower, 0, version=version, epoch=1)).error_code == expected
        assert (await follower.list_offset("orders", -1)).error_code == NOT_LEADER


@asynccontextmanager
async def behind(cluster: Cluster) -> AsyncIterator[Client]:
    """A client of follower 2, which has a record above its high watermark: in-sync replica 3 does not run."""
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2, 3))
    await send(cluster, 1, b"0", acks=1)
    await eventually(lambda: cluster.nodes[2].end == 1)
    assert cluster.nodes[2].high_watermark == 0
    async with cluster.client(2) as follower:
        yield follower


async def test_a_follower_returns_records_below_its_own_high_watermark_only(cluster: Cluster) -> None:
    async with behind(cluster) as follower:
        for offset in (0, 1):
            answer = await follower.fetch("orders", offset)
            assert (answer.error_code, answer.high_watermark, answer.records) == (0, 0, b"")
        assert (await follower.fetch("orders", 2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        cluster.change(isr=(1, 2))
        await all_visible(cluster, 1)
        assert values_of(await follower.fetch("orders", 0)) == [b"0"]


async def test_an_offset_below_the_followers_log_is_out_of_range(cluster: Cluster) -> None:
    await in_racks(cluster)
    async with cluster.client(1) as leader, cluster.client(2) as follower:
        assert (await leader.delete_records("orders", 3)).error_code == 0
        await eventually(lambda: cluster.nodes[2].replica().log.log_start_offset == 3)
        assert (await follower.fetch("orders", 2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert values_of(await follower.fetch("orders", 3)) == names(2, 3)


async def test_a_follower_knows_the_end_of_the_epochs_in_its_log(cluster: Cluster) -> None:
    await in_racks(cluster)
    cluster.change(leader=1)
    async with cluster.client(2) as follower:
        for last_epoch, offset, expected in (
            (0, 5, (0, -1)),
            (0, 6, (0, 0)),
            (1, 5, (ErrorCode.OFFSET_OUT_OF_RANGE, -1)),
        ):
            asked = fetch_members({("orders", 0): offset})
            asked["topics"][0].partitions[0].last_fetched_epoch = last_epoch
            answer = (await follower.ask("Fetch", 12, **asked)).responses[0].partitions[0]
            assert (answer.error_code, answer.diverging_epoch.epoch) == expected


# Waiting on a follower


@asynccontextmanager
async def waiting(cluster: Cluster, client: Client, answers: list[Any], **members: Any) -> AsyncIterator[None]:
    """A consumer that waits on broker 2 when the block begins, and appends its answer, long before its own timeout."""

    async def consume() -> None:
        answers.append(await fetch_at(cluster, client, 0, max_wait_ms=28_000, **members))

    with trio.fail_after(15):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume)
            await eventually(lambda: bool(cluster.nodes[2].replica().fetch_waiters))
            yield


@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_a_consumer_that_waits_gets_records_when_the_high_watermark_of_the_follower_grows(
    cluster: Cluster, isolation_level: int
) -> None:
    answers: list[Any] = []
    async with behind(cluster) as follower:
        async with waiting(cluster, follower, answers, isolation_level=isolation_level):
            cluster.change(isr=(1, 2))
        assert values_of(answers[0]) == [b"0"]


async def test_a_consumer_waits_until_a_follower_can_return_min_bytes(cluster: Cluster) -> None:
    size = len(make_batch(b"0"))
    answers: list[Any] = []
    async with behind(cluster) as follower:
        async with waiting(cluster, follower, answers, min_bytes=2 * size):
            cluster.change(isr=(1, 2))
            await all_visible(cluster, 1)
            assert cluster.nodes[2].replica().fetch_waiters
            await send(cluster, 1, b"1")
        assert values_of(answers[0]) == [b"0", b"1"]


async def test_a_new_leader_epoch_fences_a_consumer_that_waits_on_a_follower(cluster: Cluster) -> None:
    answers: list[Any] = []
    async with behind(cluster) as follower:
        async with waiting(cluster, follower, answers, epoch=0):
            cluster.change(leader=1)
        assert answers[0].error_code == ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize(("epoch", "code"), [(0, ErrorCode.FENCED_LEADER_EPOCH), (-1, ErrorCode.NONE)])
async def test_a_consumer_that_waits_when_its_leader_becomes_a_follower_is_answered(
    cluster: Cluster, epoch: int, code: ErrorCode
) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(2, (1, 2))
    answers: list[Any] = []
    async with cluster.client(2) as client:
        async with waiting(cluster, client, answers, epoch=epoch):
            cluster.change(leader=1)
        assert answers[0].error_code == code
        await send(cluster, 1, b"later")
        await all_visible(cluster, 1)
        assert values_of(await client.fetch("orders", 0)) == [b"later"]


async def test_a_consumer_that_waits_on_a_follower_is_answered_when_it_becomes_the_leader(cluster: Cluster) -> None:
    answers: list[Any] = []
    async with behind(cluster) as follower:
        async with waiting(cluster, follower, answers):
            cluster.change(leader=2, isr=(2,))
        assert answers[0].error_code == 0
        assert values_of(await follower.fetch("orders", 0)) == [b"0"]


async def test_a_replica_that_moves_away_sends_its_consumers_away(cluster: Cluster) -> None:
    answers: list[Any] = []
    async with behind(cluster) as follower:
        async with waiting(cluster, follower, answers):
            cluster.change(replicas=(1, 3), isr=(1,))
        assert answers[0].error_code == NOT_LEADER
        assert (await follower.fetch("orders", 0)).error_code == NOT_LEADER
