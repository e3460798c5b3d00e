"""Three kbrokers keep equal replicas while brokers are killed and stopped, and stock clients write and read."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import trio
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster
from tests.cluster.stock_clients import Group, NumberedRecords, committed, eventually, goes_on, read_all

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

TOPIC = "orders"
PARTITIONS = 3


async def create(cluster: RunningCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    new = NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})
    futures = admin.create_topics([new])
    await trio.to_thread.run_sync(lambda: futures[TOPIC].result(TIMEOUT_SECONDS))
    await all_in_sync(cluster)


async def all_in_sync(cluster: RunningCluster) -> None:
    """Waits until every replica of every topic, also of __consumer_offsets, is in sync."""
    await cluster.until_agreed(
        lambda _c, brokers, topics: (
            brokers == [1, 2, 3]
            and TOPIC in topics
            and all(isr == [1, 2, 3] for partitions in topics.values() for _leader, isr in partitions.values())
        )
    )


async def is_without(cluster: RunningCluster, victim: int) -> Any:
    return await cluster.until_agreed(
        lambda controller, brokers, topics: (
            controller in brokers
            and victim not in brokers
            and all(leader in brokers for partitions in topics.values() for leader, _isr in partitions.values())
        )
    )


def check_records(records: NumberedRecords, cluster: RunningCluster) -> None:
    """Checks that every sent record was acknowledged, and exists once and in order."""
    assert records.failures == []
    assert records.acknowledged == records.sent
    assert [read_all(cluster.bootstrap, TOPIC, index) for index in range(PARTITIONS)] == records.sent


async def test_nothing_acknowledged_is_lost_when_a_leader_and_the_controller_are_killed(three: RunningCluster) -> None:
    await create(three)
    records = NumberedRecords(three.bootstrap, TOPIC, PARTITIONS)
    group = Group(three.bootstrap, TOPIC, "readers")
    with group.running():
        with records.running():
            await eventually(lambda: bool(group.read), three.log)
            controller, brokers, _topics = await three.until_agreed(lambda _c, _b, topics: len(topics) == 2)
            leader = next(broker_id for broker_id in brokers if broker_id != controller)
            for victim in (leader, controller):
                await three.brokers[victim].kill()
                await is_without(three, victim)
                await goes_on(records, three)
                await three.start(victim)
                await all_in_sync(three)
                await goes_on(records, three)
        sent = {value for values in records.sent for value in values}
        await eventually(lambda: group.read == sent, lambda: (len(sent), len(group.read), three.log()))
    await trio.to_thread.run_sync(check_records, records, three)
    offsets = await trio.to_thread.run_sync(committed, three.bootstrap, TOPIC, PARTITIONS, "readers")
    assert offsets == [len(values) for values in records.sent]
    assert "Traceback" not in three.log()


async def test_other_brokers_lead_when_all_directories_of_a_broker_have_failed(three: RunningCluster) -> None:
    await create(three)
    records = NumberedRecords(three.bootstrap, TOPIC, PARTITIONS)
    with records.running():
        await goes_on(records, three)
        victim = three.brokers[1]
        for index in range(PARTITIONS):
            shutil.rmtree(three.directory / "1" / f"{TOPIC}-{index}")
        # The next file that the broker creates there is missing its directory.
        admin = AdminClient({"bootstrap.servers": three.bootstrap, "log_level": 0})
        resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC)
        resource.add_incremental_config(
            ConfigEntry("segment.bytes", "1048576", incremental_operation=AlterConfigOpType.SET)
        )
        resource.add_incremental_config(ConfigEntry("segment.ms", "1", incremental_operation=AlterConfigOpType.SET))
        futures = admin.incremental_alter_configs([resource])
        await trio.to_thread.run_sync(lambda: futures[resource].result(TIMEOUT_SECONDS))
        with trio.fail_after(TIMEOUT_SECONDS):
            assert await victim.process.wait() != 0
        await is_without(three, 1)
        await goes_on(records, three)
    await trio.to_thread.run_sync(check_records, records, three)
    assert "have failed" in victim.stderr
    assert "Traceback" not in three.log()


async def test_producers_notice_nothing_when_brokers_are_restarted_in_turn(three: RunningCluster) -> None:
    await create(three)
    records = NumberedRecords(three.bootstrap, TOPIC, PARTITIONS)
    with records.running():
        for broker_id in (1, 2, 3):
            await goes_on(records, three)
            assert await three.brokers[broker_id].terminate() == 0
            await goes_on(records, three)
            await three.start(broker_id)
            await all_in_sync(three)
        await goes_on(records, three)
    await trio.to_thread.run_sync(check_records, records, three)
    assert "Traceback" not in three.log()
