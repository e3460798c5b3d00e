"""A partition directory disappears while its broker is stopped: an empty log never replaces the other replica."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import trio
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster, running_cluster
from tests.cluster.stock_clients import read_all

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

TOPIC = "orders"
VALUES = [b"%d" % number for number in range(20)]


async def create(cluster: RunningCluster) -> None:
    """Creates a topic on the brokers 1 and 2, with records on both."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    futures = admin.create_topics([NewTopic(TOPIC, 1, replica_assignment=[[1, 2]])])
    await trio.to_thread.run_sync(lambda: futures[TOPIC].result(TIMEOUT_SECONDS))

    def write() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0, "acks": "all"})
        for value in VALUES:
            producer.produce(TOPIC, value)
        assert producer.flush(TIMEOUT_SECONDS) == 0

    await trio.to_thread.run_sync(write)


async def call(cluster: RunningCluster, *arguments: str) -> str:
    command = [sys.executable, "-m", "kbroker", *arguments, "--bootstrap", cluster.bootstrap]
    return (await trio.run_process(command, capture_stdout=True)).stdout.decode()


async def test_the_last_replica_of_the_isr_does_not_lead_without_its_log(zookeeper: str, tmp_path: Path) -> None:
    async with running_cluster(zookeeper, tmp_path, 2) as cluster:
        await cluster.until_agreed(lambda _c, brokers, _t: brokers == [1, 2])
        await create(cluster)
        await cluster.brokers[2].terminate()
        await cluster.until_agreed(lambda _c, _b, topics: topics[TOPIC][0] == (1, [1]))
        await cluster.brokers[1].terminate()
        await trio.to_thread.run_sync(shutil.rmtree, tmp_path / "1" / f"{TOPIC}-0")
        await cluster.start(1)
        assert "orders-0 has disappeared; its last known end offset is 20: the replica stays offline" in cluster.log()
        await cluster.start(2)
        await cluster.until_agreed(lambda _c, brokers, topics: brokers == [1, 2] and topics[TOPIC][0][0] == -1)
        elected = json.loads(await call(cluster, "leaders", "elect", TOPIC, "--unclean", "--yes", "--json"))
        assert [row["result"] for row in elected] == ["elected"]
        await cluster.until_agreed(lambda _c, _b, topics: topics[TOPIC][0][0] == 2)
        assert await trio.to_thread.run_sync(read_all, cluster.bootstrap, TOPIC, 0) == VALUES
        assert "Traceback" not in cluster.log()
