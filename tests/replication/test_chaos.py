"""Brokers crash and restart and leaders change while a producer sends: no acknowledged record is lost, duplicated or
reordered, and in the end all replicas are equal."""

from __future__ import annotations

from random import Random

import pytest
import trio

from kbroker.controller.image import NO_LEADER
from kbroker.controller.rules.election import elect
from kbroker.protocol.error_codes import ErrorCode
from tests.log.batches import make_batch
from tests.replication.cluster import Cluster, eventually

BROKERS = (1, 2, 3)
STEPS = 40


class Producer:
    """Sends values one after the other to the current leader. No retries: a failed value may be written or not."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.acknowledged: list[bytes] = []
        self.count = 0

    async def run(self) -> None:
        while True:
            leader = self._cluster.state().leader
            node = self._cluster.nodes.get(leader)
            if node is None or not node.is_up:
                await trio.sleep(0.001)
                continue
            value = b"%d" % self.count
            self.count += 1
            try:
                with trio.move_on_after(1):
                    async with self._cluster.client(leader) as client:
                        answer = await client.produce("orders", make_batch(value), acks=-1)
                        if answer.error_code == ErrorCode.NONE:
                            self.acknowledged.append(value)
            except (OSError, EOFError, trio.BrokenResourceError):
                pass


def controller_elects(cluster: Cluster) -> None:
    state = elect(cluster.state(), cluster.image.brokers, controller_epoch=0)
    if state is not None:
        cluster.change(leader=state.leader, isr=state.isr)


async def step(cluster: Cluster, choose: Random) -> None:
    broker_id = choose.choice(BROKERS)
    node = cluster.nodes[broker_id]
    match choose.choice(("kill", "start", "start", "move", "drop")):
        case "kill" if node.is_up:
            await cluster.kill(broker_id)
            controller_elects(cluster)
        case "start" if not node.is_up and cluster.state().leader != broker_id:
            await cluster.start(broker_id, replica_lag_time_max_ms=200)
            controller_elects(cluster)
        case "move" if node.is_up and broker_id in cluster.state().isr and cluster.state().leader != broker_id:
            cluster.change(leader=broker_id)
        case "drop" if broker_id in cluster.state().isr and len(cluster.state().isr) > 1:
            state = cluster.state()
            if state.leader not in (broker_id, NO_LEADER):
                cluster.change(isr=tuple(other for other in state.isr if other != broker_id))
    await trio.sleep(choose.choice((0.0, 0.005, 0.03)))


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_acknowledged_records_stay_in_order_and_once(cluster: Cluster, seed: int) -> None:
    choose = Random(seed)
    await cluster.start(*BROKERS, replica_lag_time_max_ms=200)
    cluster.add_topic(1, BROKERS)
    producer = Producer(cluster)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(producer.run)
        for _ in range(STEPS):
            await step(cluster, choose)
        for broker_id in BROKERS:
            if not cluster.nodes[broker_id].is_up:
                await cluster.start(broker_id, replica_lag_time_max_ms=200)
                controller_elects(cluster)
        controller_elects(cluster)
        count = len(producer.acknowledged)
        await eventually(lambda: len(producer.acknowledged) > count + 3)
        nursery.cancel_scope.cancel()
    await eventually(lambda: set(cluster.state().isr) == set(BROKERS))
    await eventually(lambda: len({node.end for node in cluster.nodes.values()}) == 1)
    logs = [node.values() for node in cluster.nodes.values()]
    assert logs[0] == logs[1] == logs[2]
    kept = set(producer.acknowledged)
    assert [value for value in logs[0] if value in kept] == producer.acknowledged
    assert len(producer.acknowledged) > 10
