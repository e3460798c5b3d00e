"""Three kbrokers and a ZooKeeper with stock clients, while brokers are killed, stopped and restarted."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import trio
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from kafka.admin import KafkaAdminClient

from tests.broker.child import spawn
from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster, all_brokers_live, running_cluster
from tests.cluster.stock_clients import describe_group

pytestmark = pytest.mark.jvm


def all_led(brokers: list[int], topics: dict[str, Any], topic: str) -> bool:
    return topic in topics and all(leader in brokers for leader, _isr in topics[topic].values())


async def create(cluster: RunningCluster, topic: str, partitions: int = 3, replicas: int = 3) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    futures = admin.create_topics([NewTopic(topic, partitions, replicas)])
    await trio.to_thread.run_sync(lambda: futures[topic].result(TIMEOUT_SECONDS))


@all_brokers_live
async def test_a_topic_that_a_client_creates_is_the_same_on_every_broker(three: RunningCluster) -> None:
    await create(three, "orders", 6)
    _controller, brokers, topics = await three.until_agreed(
        lambda _c, brokers, topics: len(brokers) == 3 and "orders" in topics
    )
    assert brokers == [1, 2, 3]
    leaders = [leader for leader, _isr in topics["orders"].values()]
    assert sorted(leaders) == [1, 1, 2, 2, 3, 3]
    assert all(isr == [1, 2, 3] for _leader, isr in topics["orders"].values())


@all_brokers_live
async def test_partitions_configs_and_deletions_reach_every_broker(three: RunningCluster) -> None:
    await create(three, "orders")
    admin = AdminClient({"bootstrap.servers": three.bootstrap, "log_level": 0})

    def grow() -> None:
        admin.create_partitions([NewPartitions("orders", 5)])["orders"].result(TIMEOUT_SECONDS)

    def alter() -> None:
        entry = ConfigEntry("retention.ms", "12345", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("topic", "orders", incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_SECONDS)

    await trio.to_thread.run_sync(grow)
    await three.until_agreed(lambda _c, _b, topics: len(topics.get("orders", ())) == 5)
    await trio.to_thread.run_sync(alter)

    def retention(broker_id: int) -> str:
        single = AdminClient({"bootstrap.servers": f"127.0.0.1:{three.brokers[broker_id].port}", "log_level": 0})
        resource = ConfigResource("topic", "orders")
        return str(single.describe_configs([resource])[resource].result(TIMEOUT_SECONDS)["retention.ms"].value)

    with trio.fail_after(TIMEOUT_SECONDS):
        for broker_id in three.brokers:
            while await trio.to_thread.run_sync(retention, broker_id) != "12345":
                await trio.lowlevel.checkpoint()

    await trio.to_thread.run_sync(lambda: admin.delete_topics(["orders"])["orders"].result(TIMEOUT_SECONDS))
    await three.until_agreed(lambda _c, _b, topics: "orders" not in topics)


async def test_another_broker_leads_when_one_is_killed_and_restarts_as_follower(three: RunningCluster) -> None:
    await create(three, "orders", 3)
    controller, _brokers, before = await three.until_agreed(lambda _c, _b, topics: "orders" in topics)
    victim = next(broker_id for broker_id in (1, 2, 3) if broker_id != controller)
    await three.brokers[victim].kill()
    _c, _b, after = await three.until_agreed(
        lambda _c, brokers, topics: victim not in brokers and all_led(brokers, topics, "orders")
    )
    for index, (leader, isr) in before["orders"].items():
        assert after["orders"][index][1] == [replica for replica in isr if replica != victim]
        if leader != victim:
            assert after["orders"][index][0] == leader
    await three.start(victim)
    await three.until_agreed(lambda _c, brokers, topics: brokers == [1, 2, 3] and all_led(brokers, topics, "orders"))


async def test_another_controller_is_elected_when_it_is_killed(three: RunningCluster) -> None:
    await create(three, "orders")
    controller, _b, _t = await three.until_agreed(lambda _c, brokers, _t: len(brokers) == 3)
    await three.brokers[controller].kill()
    _c, brokers, _t = await three.until_agreed(
        lambda now, brokers, topics: now in brokers and controller not in brokers and all_led(brokers, topics, "orders")
    )
    assert len(brokers) == 2
    await create(three, "after", 2, 2)
    await three.until_agreed(lambda _c, _b, topics: "after" in topics)


async def test_a_suspended_controller_resigns_when_it_resumes(three: RunningCluster) -> None:
    await create(three, "orders")
    controller, _b, _t = await three.until_agreed(lambda _c, brokers, topics: len(brokers) == 3 and "orders" in topics)
    sleeper = three.brokers.pop(controller)
    sleeper.process.send_signal(signal.SIGSTOP)
    try:
        await three.until_agreed(
            lambda now, brokers, topics: (
                now in brokers and controller not in brokers and all_led(brokers, topics, "orders")
            )
        )
        await create(three, "meanwhile", 2, 2)
    finally:
        sleeper.process.send_signal(signal.SIGCONT)
        three.brokers[controller] = sleeper
    await three.until_agreed(
        lambda now, brokers, topics: (
            now != controller and brokers == [1, 2, 3] and all_led(brokers, topics, "orders") and "meanwhile" in topics
        )
    )


async def test_a_stopped_broker_moves_its_leaderships_first(three: RunningCluster) -> None:
    await create(three, "orders", 6)
    controller, _b, _t = await three.until_agreed(lambda _c, _b, topics: "orders" in topics)
    assert await three.brokers[controller].terminate() == 0
    log = three.brokers[controller].stderr
    assert "nobody else" not in log
    # Another controller is elected while this broker still waits for its clients and flushes its logs.
    assert log.index("Resigned as controller") < log.index("Stopping: waiting up to")
    await three.until_agreed(
        lambda _c, brokers, topics: controller not in brokers and all_led(brokers, topics, "orders")
    )
    await three.start(controller)
    await three.until_agreed(lambda _c, brokers, topics: brokers == [1, 2, 3] and all_led(brokers, topics, "orders"))


@all_brokers_live
async def test_topics_are_auto_created_at_any_broker(three: RunningCluster) -> None:
    await three.until_agreed(lambda _c, brokers, _t: len(brokers) == 3)

    def ask(broker_id: int) -> None:
        admin = KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{three.brokers[broker_id].port}")
        admin.list_group_offsets({f"group-{broker_id}": None})  # finding a coordinator creates __consumer_offsets
        admin.close()

    for broker_id in three.brokers:
        await trio.to_thread.run_sync(ask, broker_id)
    _c, _b, topics = await three.until_agreed(
        lambda _c, brokers, topics: all_led(brokers, topics, "__consumer_offsets")
    )
    assert len(topics["__consumer_offsets"]) == 3
    assert {leader for leader, _isr in topics["__consumer_offsets"].values()} == {1, 2, 3}


@all_brokers_live
async def test_a_coordinator_is_the_leader_of_the_groups_partition(three: RunningCluster) -> None:
    found = {await describe_group(three.brokers[1].port, f"group-{number}") for number in range(8)}
    assert found <= {1, 2, 3}
    assert len(found) > 1


@all_brokers_live
async def test_a_second_broker_with_the_same_id_says_so_in_one_line(three: RunningCluster, tmp_path: Any) -> None:
    arguments = ["--set", "broker.id=2", "--set", f"zookeeper.connect={three.connect}"]
    child = await spawn(tmp_path / "rival", *arguments)
    with trio.fail_after(TIMEOUT_SECONDS):
        assert await child.process.wait() != 0
    assert child.stderr.splitlines()[-1].endswith(
        "broker.id=2 is in use by another broker of this cluster. Give each broker its own id."
    )
    assert "Traceback" not in child.stderr


async def test_a_broker_without_an_id_gets_one_and_keeps_it(zookeeper: str, tmp_path: Any) -> None:
    async with running_cluster(zookeeper, tmp_path, 0) as cluster:
        await cluster.start(-1)
        _c, brokers, _t = await cluster.until_agreed(lambda _c, brokers, _t: len(brokers) == 1)
        assert brokers == [1001]
        assert await cluster.brokers[-1].terminate() == 0
        await cluster.start(-1)
        await cluster.until_agreed(lambda controller, brokers, _t: brokers == [1001] and controller == 1001)
