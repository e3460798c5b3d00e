"""Logs that lost records, in a cluster: new records are in a new leader epoch, whichever broker is the controller."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster, running_cluster

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

TOPIC = "orders"


async def create_on(cluster: RunningCluster, broker_id: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    futures = admin.create_topics([NewTopic(TOPIC, 1, replica_assignment=[[broker_id]])])
    await trio.to_thread.run_sync(lambda: futures[TOPIC].result(TIMEOUT_SECONDS))


def write(cluster: RunningCluster, value: bytes) -> None:
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    producer.produce(TOPIC, value, on_delivery=lambda error, _message: failures.append(error))
    assert producer.flush(TIMEOUT_SECONDS) == 0
    assert failures == [None]


def read(cluster: RunningCluster, count: int) -> list[tuple[bytes | None, int | None]]:
    """Returns values and their leader epochs."""
    config = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": "readers",
        "log_level": 0,
        "enable.auto.commit": False,
    }
    consumer = Consumer(config)
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        return [
            (message.value(), message.leader_epoch()) for message in consumer.consume(count, timeout=TIMEOUT_SECONDS)
        ]
    finally:
        consumer.close()


async def written_and_read(cluster: RunningCluster, value: bytes, count: int) -> list[tuple[bytes | None, int | None]]:
    await trio.to_thread.run_sync(write, cluster, value)
    return await trio.to_thread.run_sync(read, cluster, count)


@pytest.mark.parametrize("controller", ["another broker", "itself"])
async def test_a_log_that_lost_its_end_while_its_broker_was_down_goes_on_in_a_new_epoch(
    zookeeper: str, tmp_path: Path, controller: str
) -> None:
    async with running_cluster(zookeeper, tmp_path, 0) as cluster:
        await cluster.start(1)
        await cluster.start(2)
        await cluster.until_agreed(lambda _c, brokers, _t: brokers == [1, 2])
        await create_on(cluster, 2)
        await trio.to_thread.run_sync(write, cluster, b"first")
        ((_value, epoch), _lost) = await written_and_read(cluster, b"lost", 2)
        assert epoch is not None
        assert await cluster.brokers[2].terminate() == 0
        path = tmp_path / "2" / f"{TOPIC}-0" / f"{0:020d}.log"
        path.write_bytes(path.read_bytes()[:-1])
        if controller == "itself":
            assert await cluster.brokers[1].terminate() == 0
        await cluster.start(2)
        elected = await led_by(cluster, 2)
        ((first, _epoch), (second, later)) = await written_and_read(cluster, b"second", 2)
        assert (first, second) == (b"first", b"second")
        assert later is not None
        assert later > epoch
        assert elected == (2 if controller == "itself" else 1)
        assert "damaged log of orders-0" in cluster.brokers[2].stderr


async def led_by(cluster: RunningCluster, broker_id: int) -> int:
    """Returns the id of the controller."""
    controller, _brokers, _topics = await cluster.until_agreed(
        lambda _c, _b, topics: topics.get(TOPIC, {}).get(0, (None,))[0] == broker_id
    )
    return int(controller)


async def test_a_broker_that_is_killed_and_finds_itself_still_the_leader_takes_a_new_epoch(
    zookeeper: str, tmp_path: Path
) -> None:
    """No other broker was running to elect a leader: the broker becomes the controller itself."""
    async with running_cluster(zookeeper, tmp_path, 1) as cluster:
        await create_on(cluster, 1)
        ((_value, before),) = await written_and_read(cluster, b"first", 1)
        await cluster.brokers[1].kill()
        await cluster.start(1)
        await led_by(cluster, 1)
        values = await written_and_read(cluster, b"second", 2)
        assert [value for value, _epoch in values] == [b"first", b"second"]
        after = values[1][1]
        assert before is not None
        assert after is not None
        assert after > before
