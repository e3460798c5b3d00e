"""A kbroker and an Apache Kafka 3.9 in two racks: as leader and as follower both give consumers the same answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from kbroker.config.broker import RACK_AWARE_SELECTOR
from kbroker.protocol.messages import list_offsets
from tests.broker.wire import Client, connect, fetch_members, records_of
from tests.cluster.conftest import LONG_SESSION_MS, TIMEOUT_SECONDS, RunningCluster, running_cluster
from tests.cluster.test_beside_kafka import KAFKA_ID, kafka_beside
from tests.log.batches import make_batch

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

TOPIC = "orders"
KBROKER_ID = 1
END = 3
LONG_SESSION = f"zookeeper.session.timeout.ms={LONG_SESSION_MS}"  # no broker dies, and the answers have leader epoch 0


def in_rack(broker_id: int) -> list[str]:
    return [f"broker.rack=rack{broker_id}", f"replica.selector.class={RACK_AWARE_SELECTOR}", LONG_SESSION]


@pytest.fixture
async def both(zookeeper: str, java: str, judge39_classpath: str, tmp_path: Path) -> AsyncIterator[RunningCluster]:
    """Returns a cluster of both, with a topic: Kafka leads partition 0, kbroker leads partition 1."""
    async with (
        running_cluster(zookeeper, tmp_path, 1, in_rack) as cluster,
        kafka_beside(cluster, judge39_classpath, java, tmp_path / "kafka", *in_rack(KAFKA_ID)),
    ):
        await cluster.until_agreed(lambda _c, brokers, _t: brokers == [KBROKER_ID, KAFKA_ID])
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        assignment = [[KAFKA_ID, KBROKER_ID], [KBROKER_ID, KAFKA_ID]]
        futures = admin.create_topics([NewTopic(TOPIC, 2, replica_assignment=assignment)])
        await trio.to_thread.run_sync(lambda: futures[TOPIC].result(TIMEOUT_SECONDS))
        await cluster.until_agreed(
            lambda _c, _b, topics: TOPIC in topics and all(len(isr) == 2 for _leader, isr in topics[TOPIC].values())
        )
        yield cluster


class Reader:
    """Asks the leader and the follower of one partition, and describes their answers without ids of brokers."""

    def __init__(self, cluster: RunningCluster, partition: int, clients: Sequence[Client]) -> None:
        self.leader_id, self.follower_id = ((KAFKA_ID, KBROKER_ID), (KBROKER_ID, KAFKA_ID))[partition]
        self.partition = partition
        self.leader, self.follower = clients

    async def fetch(
        self, client: Client, offset: int, *, version: int = 12, epoch: int = -1, last_epoch: int = -1, **members: Any
    ) -> tuple[object, ...]:
        asked = fetch_members({(TOPIC, self.partition): offset}, **members)
        wanted = asked["topics"][0].partitions[0]
        wanted.current_leader_epoch, wanted.last_fetched_epoch = epoch, last_epoch
        answer = (await client.ask("Fetch", version, **asked)).responses[0].partitions[0]
        preferred = {self.leader_id: "leader", self.follower_id: "follower"}.get(answer.preferred_read_replica)
        return (
            answer.error_code,
            answer.high_watermark,
            answer.last_stable_offset,
            answer.log_start_offset,
            (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset),
            answer.aborted_transactions,
            preferred,
            [record.value for record in records_of(answer)],
        )

    async def list_offset(self, client: Client, epoch: int) -> int:
        asked = list_offsets.ListOffsetsPartition(
            partition_index=self.partition, timestamp=-1, current_leader_epoch=epoch
        )
        topics = [list_offsets.ListOffsetsTopic(name=TOPIC, partitions=[asked])]
        code: int = (
            (await client.ask("ListOffsets", 7, replica_id=-1, topics=topics)).topics[0].partitions[0].error_code
        )
        return code

    async def fill(self) -> None:
        for number in range(END):
            answer = await self.leader.produce(TOPIC, make_batch(b"%d" % number), partition=self.partition)
            assert answer.error_code == 0
        with trio.fail_after(TIMEOUT_SECONDS):
            while (await self.fetch(self.follower, 0))[1] != END:
                pass

    async def answers(self) -> dict[str, object]:
        found: dict[str, object] = {}
        racks = {"own": f"rack{self.leader_id}", "other": f"rack{self.follower_id}", "unknown": "rack9", "no": ""}
        for name, client in (("leader", self.leader), ("follower", self.follower)):
            for version in (10, 11, 12):
                for rack, rack_id in racks.items():
                    members: dict[str, Any] = {"version": version, "rack_id": rack_id if version >= 11 else ""}
                    for offset in (0, 1, END, END + 1):
                        found[f"{name} v{version} {rack} rack, {offset}"] = await self.fetch(client, offset, **members)
                    for epoch in (0, 1):
                        found[f"{name} v{version} {rack} rack, epoch {epoch}"] = await self.fetch(
                            client, 0, epoch=epoch, **members
                        )
                    found[f"{name} v{version} {rack} rack, committed"] = await self.fetch(
                        client, 0, isolation_level=1, **members
                    )
            for last_epoch, offset in ((0, END), (0, END + 1), (1, END)):
                for rack, rack_id in racks.items():
                    found[f"{name} {rack} rack, last epoch {last_epoch}, {offset}"] = await self.fetch(
                        client, offset, last_epoch=last_epoch, rack_id=rack_id
                    )
            for epoch in (-1, 0, 1):
                found[f"{name} lists, epoch {epoch}"] = await self.list_offset(client, epoch)
        found["another broker"] = await self.fetch(self.follower, 0, version=11, replica_id=7)
        return found

    async def sessions(self) -> list[object]:
        """Returns what a consumer gets that is sent away in every fetch of its session, though nothing changes."""
        rack = f"rack{self.follower_id}"
        asked = fetch_members({(TOPIC, self.partition): 0}, rack_id=rack)
        answer = await self.leader.ask("Fetch", 12, session_epoch=0, **asked)
        found: list[object] = []
        for epoch in (1, 2):
            asked = fetch_members({}, rack_id=rack, session_id=answer.session_id, session_epoch=epoch)
            again = await self.leader.ask("Fetch", 12, **asked)
            found.append(
                [part.preferred_read_replica == self.follower_id for t in again.responses for part in t.partitions]
            )
        return found


async def test_both_send_consumers_to_each_other_and_answer_them_alike(both: RunningCluster) -> None:
    answers, sessions = [], []
    async with AsyncExitStack() as stack:
        clients = {
            broker_id: await stack.enter_async_context(connect(both.brokers[broker_id].port))
            for broker_id in (KAFKA_ID, KBROKER_ID)
        }
        order = [clients[KAFKA_ID], clients[KBROKER_ID]]
        for partition in (0, 1):
            reader = Reader(both, partition, order if partition == 0 else order[::-1])
            await reader.fill()
            answers.append(await reader.answers())
            sessions.append(await reader.sessions())
    kafka_leads, kbroker_leads = answers
    assert kafka_leads["leader v12 other rack, 0"] == (0, END, END, 0, (-1, -1), None, "follower", [])
    assert kbroker_leads["follower v12 other rack, 1"] == (0, END, END, 0, (-1, -1), None, None, [b"1", b"2"])
    of_leader = {name: answer for name, answer in kafka_leads.items() if name.startswith("leader")}
    assert {name: answer for name, answer in kbroker_leads.items() if name.startswith("leader")} == of_leader
    of_follower = {name: answer for name, answer in kbroker_leads.items() if not name.startswith("leader")}
    assert {name: answer for name, answer in kafka_leads.items() if not name.startswith("leader")} == of_follower
    assert sessions == [[[True], [True]]] * 2
