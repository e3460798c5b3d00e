"""Three kbrokers below a path of a ZooKeeper ensemble of three, whose servers are killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from kazoo.client import KazooClient

from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster, running_cluster
from tests.cluster.ensemble import SERVERS, Ensemble, running_ensemble
from tests.cluster.stock_clients import NumberedRecords, goes_on
from tests.cluster.test_replication import all_in_sync, check_records, create, is_without

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

# Of the controller; and of a controller that knows too few brokers, because the others have still to register again.
WITHOUT_SESSION = (KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_CONTROLLER, KafkaError.INVALID_REPLICATION_FACTOR)


def describe(cluster: RunningCluster, *options: str) -> str:
    address = f"127.0.0.1:{next(iter(cluster.alive.values())).port}"
    command = [sys.executable, "-m", "kbroker", "cluster", "describe", *options, "--bootstrap", address]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=2 * TIMEOUT_SECONDS).stdout


async def states(cluster: RunningCluster) -> list[str]:
    described: Any = json.loads(await trio.to_thread.run_sync(describe, cluster, "--json"))
    assert described["zookeeper"]["path"].startswith("/deep/cluster-")
    return sorted(server["state"] for server in described["zookeeper"]["servers"])


def is_created(cluster: RunningCluster, topic: str) -> bool:
    """Sends one request. Returns False if brokers, or the controller, have no session with ZooKeeper yet."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    try:
        admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(TIMEOUT_SECONDS)
    except KafkaException as error:
        code = error.args[0].code()
        if code not in (*WITHOUT_SESSION, KafkaError.TOPIC_ALREADY_EXISTS):
            raise
        return bool(code == KafkaError.TOPIC_ALREADY_EXISTS)  # an earlier request was served after its time
    return True


async def until_created(cluster: RunningCluster, topic: str) -> None:
    """Asks again while the brokers have no session with ZooKeeper: they reconnect up to some seconds after a quorum."""
    with trio.fail_after(TIMEOUT_SECONDS):
        while not await trio.to_thread.run_sync(is_created, cluster, topic):
            pass
    await cluster.until_agreed(lambda _c, _b, topics: topic in topics)


def top_level_nodes(ensemble: Ensemble) -> set[str]:
    client = KazooClient(ensemble.connect)
    client.start(timeout=TIMEOUT_SECONDS)
    try:
        return set(client.get_children("/"))
    finally:
        client.stop()
        client.close()


async def test_writes_go_on_while_the_leader_of_zookeeper_is_killed(java: str, tmp_path: Path) -> None:
    async with (
        running_ensemble(java, tmp_path / "zookeeper") as ensemble,
        running_cluster(f"{ensemble.connect}/deep", tmp_path, 3) as cluster,
    ):
        await create(cluster)
        assert await trio.to_thread.run_sync(top_level_nodes, ensemble) == {"zookeeper", "deep"}
        assert await states(cluster) == ["follower", "follower", "leader"]
        records = NumberedRecords(cluster.bootstrap, "orders", 3)
        with records.running():
            await goes_on(records, cluster)
            leader = await ensemble.leader()
            await ensemble.kill(leader)
            assert await ensemble.leader() != leader
            await goes_on(records, cluster)
            await until_created(cluster, "meanwhile")
            assert await states(cluster) == ["follower", "leader", "unreachable"]
            controller, _brokers, _topics = await cluster.until_agreed(lambda now, _b, _t: now > 0)
            await cluster.brokers[controller].kill()  # with two servers of ZooKeeper, the brokers still elect leaders
            await is_without(cluster, controller)
            await goes_on(records, cluster)
            await ensemble.start(leader)
            await cluster.start(controller)
            await all_in_sync(cluster)

            follower, other, last = sorted(SERVERS, key=lambda server_id: server_id == leader)
            await ensemble.kill(follower)
            await ensemble.kill(last)
            await ensemble.until(other, "not serving")
            await goes_on(records, cluster)  # without a quorum the brokers go on as they are
            assert "ZooKeeper has no quorum" in await trio.to_thread.run_sync(describe, cluster)
            await ensemble.start(follower, last)
            await until_created(cluster, "afterwards")
            await all_in_sync(cluster)
            await goes_on(records, cluster)
        await trio.to_thread.run_sync(check_records, records, cluster)
        assert "Traceback" not in cluster.log()
