"""A leader and a follower look only at the partitions of a session that have changed, and miss no change.

In most tests the test is the follower: it sends the fetches of one session.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import fetch, produce
from kbroker.replication.fetching import leader_fetcher
from kbroker.replication.fetching.incremental_fetch import FetchPosition
from kbroker.replication.partition import Partition
from kbroker.server.requests.fetch_session import FetchSession
from tests.broker.wire import Client
from tests.log.batches import make_batch
from tests.replication.cluster import Cluster, eventually

TOPICS = ("a", "b", "c")
LONG_MS = 20_000


class Follower:
    """Broker 2, which follows TOPICS with replicas on 1 and 2."""

    def __init__(self, cluster: Cluster, client: Client) -> None:
        self.cluster = cluster
        self.client = client
        self.session_id = self.epoch = 0
        self.ids = {name: cluster.image.topics[name].id for name in TOPICS}
        self.names = {topic_id: name for name, topic_id in self.ids.items()}

    @property
    def session(self) -> FetchSession:
        return self.cluster.nodes[1].context.fetch_sessions._sessions[self.session_id]

    @property
    def busy(self) -> list[str]:
        names = self.names
        return [names[target.topic] for target in self.session.busy if isinstance(target.topic, bytes)]

    def read_all(self, is_due: bool) -> None:
        """Makes the next fetch one of all partitions, or none of the next ones: the tests must not depend on time."""
        self.session.full_read_at = -math.inf if is_due else math.inf

    async def fetch(
        self, offsets: dict[str, int], *, forgotten: tuple[str, ...] = (), max_wait_ms: int = 0
    ) -> dict[str, Any]:
        response = await self.client.ask(
            "Fetch",
            17,
            replica_state=fetch.ReplicaState(replica_id=2, replica_epoch=1),
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[
                fetch.FetchTopic(
                    topic_id=self.ids[name],
                    partitions=[fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)],
                )
                for name, offset in offsets.items()
            ],
            forgotten_topics_data=[fetch.ForgottenTopic(topic_id=self.ids[name], partitions=[0]) for name in forgotten],
        )
        assert response.error_code == 0
        is_new = self.epoch == 0
        self.session_id = response.session_id
        self.epoch += 1
        if is_new:
            self.read_all(False)
        return {self.names[topic.topic_id]: topic.partitions[0] for topic in response.responses}


@asynccontextmanager
async def following(cluster: Cluster) -> AsyncIterator[Follower]:
    """Starts broker 1 as the leader of TOPICS, and a follower that has everything: nothing."""
    await cluster.start(1)
    for name in TOPICS:
        cluster.add_topic(1, (1, 2), name=name)
    async with cluster.client(1) as client:
        follower = Follower(cluster, client)
        assert sorted(await follower.fetch(dict.fromkeys(TOPICS, 0))) == list(TOPICS)
        yield follower


async def write(cluster: Cluster, *topics: str) -> None:
    """Writes a record to each of the topics, with one request."""
    async with cluster.client(1) as client:
        response = await client.ask(
            "Produce",
            9,
            acks=1,
            timeout_ms=1000,
            topic_data=[
                produce.TopicProduceData(
                    name=name, partition_data=[produce.PartitionProduceData(index=0, records=make_batch(b"v"))]
                )
                for name in topics
            ],
        )
        assert [topic.partition_responses[0].error_code for topic in response.responses] == [0] * len(topics)


async def test_a_follower_that_has_everything_has_no_busy_partition(cluster: Cluster) -> None:
    async with following(cluster) as follower:
        assert follower.busy == []
        assert await follower.fetch({}) == {}


async def test_a_partition_is_busy_from_a_write_until_the_follower_knows_that_it_is_committed(cluster: Cluster) -> None:
    async with following(cluster) as follower:
        await write(cluster, "b")
        assert follower.busy == ["b"]
        answers = await follower.fetch({})
        assert list(answers) == ["b"]
        assert answers["b"].records
        assert follower.busy == ["b"]  # the follower has not confirmed it
        answers = await follower.fetch({"b": 1})
        assert [answer.high_watermark for answer in answers.values()] == [1]
        assert follower.busy == []


async def test_a_follower_that_could_not_append_is_sent_the_records_again(cluster: Cluster) -> None:
    async with following(cluster) as follower:
        await write(cluster, "b")
        first = await follower.fetch({})
        again = await follower.fetch({})
        assert first["b"].records == again["b"].records


async def test_a_write_wakes_the_fetch_of_a_follower_whose_partitions_are_all_quiet(cluster: Cluster) -> None:
    async with following(cluster) as follower, trio.open_nursery() as nursery:
        answers: dict[str, Any] = {}

        async def wait() -> None:
            while not answers:  # a new leader completes its first fetches early
                answers.update(await follower.fetch({}, max_wait_ms=LONG_MS))

        nursery.start_soon(wait)
        await eventually(lambda: follower.session.waiter is not None)
        with trio.fail_after(LONG_MS / 2000):
            await write(cluster, "c", "a")
            await eventually(lambda: bool(answers))
        # One run, one response: not one for the first of them.
        assert sorted(answers) == ["a", "c"]
        assert follower.session.waiter is None


async def test_a_new_high_watermark_makes_a_partition_busy(cluster: Cluster) -> None:
    async with following(cluster) as follower:
        await write(cluster, "a")
        await follower.fetch({})
        leader = cluster.nodes[1].replica("a")
        assert leader.leadership is not None
        # The other follower is the last to confirm the record.
        leader.leadership.view.on_replicas((1, 2, 3))
        leader.leadership.view.isr = (1, 2, 3)
        assert await follower.fetch({"a": 1}) == {}
        assert follower.busy == []
        assert leader.leadership.on_fetch(3, 1, 0, 1)
        assert follower.busy == ["a"]
        assert (await follower.fetch({}))["a"].high_watermark == 1


async def test_a_forgotten_partition_stays_forgotten(cluster: Cluster) -> None:
    async with following(cluster) as follower:
        await write(cluster, "a")
        await follower.fetch({}, forgotten=("a", "b"))
        await write(cluster, "a", "b", "c")
        assert follower.busy == ["c"]
        assert list(await follower.fetch({})) == ["c"]


async def test_a_change_that_nobody_told_is_found_by_the_fetch_of_all_partitions(cluster: Cluster) -> None:
    async with following(cluster) as follower:
        leadership = cluster.nodes[1].replica("b").leadership
        assert leadership is not None
        leadership.quiet_followers.clear()
        await write(cluster, "b")
        assert await follower.fetch({}) == {}
        follower.read_all(True)
        assert list(await follower.fetch({})) == ["b"]


async def test_a_change_of_the_leader_ends_the_wait(cluster: Cluster) -> None:
    async with following(cluster) as follower, trio.open_nursery() as nursery:
        answers: dict[str, Any] = {}

        async def wait() -> None:
            while not answers:
                answers.update(await follower.fetch({}, max_wait_ms=LONG_MS))

        nursery.start_soon(wait)
        await eventually(lambda: follower.session.waiter is not None)
        cluster.change("a", leader=2)
        with trio.fail_after(LONG_MS / 2000):
            await eventually(lambda: bool(answers))
    assert {name: answer.error_code for name, answer in answers.items()} == {"a": ErrorCode.NOT_LEADER_OR_FOLLOWER}


async def test_a_new_leader_completes_the_fetches_of_quiet_followers(cluster: Cluster) -> None:
    async with following(cluster) as follower, trio.open_nursery() as nursery:

        async def wait() -> None:
            while True:  # a new leader completes its first fetches early
                await follower.fetch({}, max_wait_ms=LONG_MS)

        nursery.start_soon(wait)
        await eventually(lambda: follower.session.waiter is not None)
        cluster.nodes[1].peers.finish_fetches()
        assert follower.session.waiter is None
        nursery.cancel_scope.cancel()


async def test_a_follower_outside_of_the_isr_is_never_quiet(cluster: Cluster) -> None:
    async with following(cluster) as follower:
        cluster.change("a", isr=(1,))
        follower.read_all(True)
        await follower.fetch({})
        assert follower.busy == ["a"]


async def test_a_follower_looks_only_at_partitions_that_it_was_sent(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start(1, 2)
    for name in TOPICS:
        cluster.add_topic(1, (1, 2), name=name)

    async def send(*topics: str) -> None:
        async with cluster.client(1) as client:
            for topic in topics:
                assert (await client.produce(topic, make_batch(b"v"), acks=-1)).error_code == 0

    await send(*TOPICS, "b", "b", "b")  # the follower has a session then, and knows all high watermarks but of b
    fetcher = cluster.nodes[2].fetchers._fetchers[1]
    looked_at: set[str] = set()
    position = leader_fetcher._position

    def note(partition: Partition) -> FetchPosition:
        looked_at.add(partition.topic)
        return position(partition)

    monkeypatch.setattr(leader_fetcher, "_position", note)
    fetcher._all_positions_at = math.inf
    await send("b", "b", "b")
    assert len(cluster.nodes[2].values("b")) == 7
    assert looked_at == {"b"}
    cluster.add_topic(1, (1, 2), name="d")
    await eventually(lambda: looked_at == {*TOPICS, "d"})


async def test_a_leader_learns_soon_that_the_log_of_a_quiet_follower_begins_later(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2), name="a")
    async with cluster.client(1) as client:
        assert (await client.produce("a", make_batch(b"v"), acks=-1)).error_code == 0
    follower = cluster.nodes[2].replica("a")
    await eventually(lambda: follower.high_watermark == 1)
    follower.log.raise_log_start_offset(1)
    leadership = cluster.nodes[1].replica("a").leadership
    assert leadership is not None
    known = leadership.view.replica(2)
    assert known is not None
    await eventually(lambda: known.log_start_offset == 1)
