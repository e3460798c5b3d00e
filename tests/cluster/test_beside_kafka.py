"""A kbroker and an Apache Kafka 3.9 in one cluster: controllers, replication and transactions work between them."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kbroker.coordinator.placement import partition_for
from tests.cluster.apache_kafka import start_kafka
from tests.cluster.conftest import SESSION_MS, TIMEOUT_SECONDS, RunningCluster, running_cluster
from tests.cluster.stock_clients import (
    NumberedRecords,
    committed,
    describe_group,
    eventually,
    goes_on,
    read_all,
    read_committed,
)
from tests.cluster.test_cluster import all_led, create

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

KAFKA_ID = 10
OFFSETS_PARTITIONS = 5  # different from kbroker's default
TRANSACTION_PARTITIONS = 2

SETTINGS = {
    "zookeeper.session.timeout.ms": SESSION_MS,
    "auto.leader.rebalance.enable": "false",
    "offsets.topic.num.partitions": OFFSETS_PARTITIONS,
    "offsets.topic.replication.factor": 2,
    "transaction.state.log.num.partitions": TRANSACTION_PARTITIONS,
    "transaction.state.log.replication.factor": 2,
    "transaction.state.log.min.isr": 1,
}


def replicas(directory: Path, topic: str) -> list[str]:
    return [path.name for path in directory.glob(f"{topic}-[0-9]")]


@asynccontextmanager
async def kafka_beside(
    cluster: RunningCluster, classpath: str, java: str, directory: Path, *settings: str
) -> AsyncIterator[None]:
    """Starts an Apache Kafka that joins the cluster. `settings`: further properties."""
    properties: dict[str, object] = {**SETTINGS, "log.dirs": directory / "data"}
    for setting in settings:
        name, _equals, value = setting.partition("=")
        properties[name] = value
    await start_kafka(cluster, KAFKA_ID, properties, classpath=classpath, java=java, home=directory)
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await cluster.brokers[KAFKA_ID].kill()


async def test_both_can_lead_follow_and_be_the_controller(
    zookeeper: str, java: str, judge39_classpath: str, tmp_path: Path
) -> None:
    async with (
        running_cluster(zookeeper, tmp_path, 1) as cluster,
        kafka_beside(cluster, judge39_classpath, java, tmp_path / "kafka"),
    ):
        await cluster.until_agreed(lambda controller, brokers, _t: controller == 1 and brokers == [1, KAFKA_ID])
        await create(cluster, "orders", 4, 2)
        _c, _b, topics = await cluster.until_agreed(lambda _c, brokers, topics: all_led(brokers, topics, "orders"))
        assert sorted(leader for leader, _isr in topics["orders"].values()) == [1, 1, KAFKA_ID, KAFKA_ID]
        assert all(isr == [1, KAFKA_ID] for _leader, isr in topics["orders"].values())

        await eventually(lambda: len(replicas(tmp_path / "1", "orders")) == 4, cluster.log)

        # Kafka's broker sends CreateTopics to kbroker's controller.
        await describe_group(cluster.brokers[KAFKA_ID].port, "group")
        _c, _b, topics = await cluster.until_agreed(
            lambda _c, brokers, topics: all_led(brokers, topics, "__consumer_offsets")
        )
        assert len(topics["__consumer_offsets"]) == OFFSETS_PARTITIONS

        # After a clean stop of kbroker, Kafka leads all partitions and is the controller.
        assert await cluster.brokers[1].terminate() == 0
        await cluster.until_agreed(
            lambda controller, brokers, topics: (
                controller == KAFKA_ID and brokers == [KAFKA_ID] and all_led(brokers, topics, "orders")
            )
        )

        # After its restart kbroker gets the metadata and a deletion from Kafka's controller.
        await cluster.start(1)
        await cluster.until_agreed(
            lambda controller, brokers, topics: (
                controller == KAFKA_ID and brokers == [1, KAFKA_ID] and all_led(brokers, topics, "orders")
            )
        )
        await create(cluster, "more", 2, 2)
        await cluster.until_agreed(lambda _c, brokers, topics: all_led(brokers, topics, "more"))
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{cluster.brokers[1].port}", "log_level": 0})
        futures = admin.delete_topics(["orders"])
        await trio.to_thread.run_sync(lambda: futures["orders"].result(TIMEOUT_SECONDS))
        await cluster.until_agreed(lambda _c, _b, topics: "orders" not in topics)
        await eventually(lambda: replicas(tmp_path / "1", "orders") == [], cluster.log)


async def test_both_replicate_from_each_other(
    zookeeper: str, java: str, judge39_classpath: str, tmp_path: Path
) -> None:
    async with (
        running_cluster(zookeeper, tmp_path, 1) as cluster,
        kafka_beside(cluster, judge39_classpath, java, tmp_path / "kafka"),
    ):
        await cluster.until_agreed(lambda _c, brokers, _t: brokers == [1, KAFKA_ID])
        await create(cluster, "orders", 2, 2)

        async def both_in_sync() -> None:
            await cluster.until_agreed(
                lambda _c, _b, topics: [isr for _l, isr in topics.get("orders", {}).values()] == [[1, KAFKA_ID]] * 2
            )

        await both_in_sync()
        records = NumberedRecords(cluster.bootstrap, "orders", 2, in_flight=1)

        with records.running():
            await goes_on(records, cluster, by=100)
            # Kafka leads kbroker's partitions, and kbroker follows after its restart.
            await cluster.brokers[1].kill()
            await goes_on(records, cluster, by=100)
            await cluster.start(1)
            await both_in_sync()
            await goes_on(records, cluster, by=100)
        assert records.failures == []
        assert records.acknowledged == records.sent

        def read(broker_id: int) -> list[list[bytes]]:
            bootstrap = f"127.0.0.1:{cluster.brokers[broker_id].port}"
            return [read_all(bootstrap, "orders", index) for index in range(2)]

        assert await trio.to_thread.run_sync(read, KAFKA_ID) == records.sent
        # kbroker leads Kafka's partitions, with the records that Kafka accepted.
        await cluster.brokers[KAFKA_ID].kill()
        await cluster.until_agreed(lambda _c, brokers, topics: brokers == [1] and all_led(brokers, topics, "orders"))
        assert await trio.to_thread.run_sync(read, 1) == records.sent


def transactional_id_on(partition: int) -> str:
    """Returns a transactional id whose coordinator leads this partition of __transaction_state."""
    return next(
        name for name in map(str, itertools.count()) if partition_for(name, TRANSACTION_PARTITIONS) == partition
    )


def copy_in_transactions(bootstrap: str, name: str, group: str) -> None:
    """Commits a transaction over both partitions with an offset of the group, and aborts another one."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0})
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    producer.init_transactions(TIMEOUT_SECONDS)
    for offset, is_commit in ((1, True), (2, False)):
        producer.begin_transaction()
        for index in range(2):
            producer.produce("orders", f"{name} {is_commit}", partition=index)
        positions = [TopicPartition("orders", 0, offset)]
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), TIMEOUT_SECONDS)
        if is_commit:
            producer.commit_transaction(TIMEOUT_SECONDS)
        else:
            producer.abort_transaction(TIMEOUT_SECONDS)
    consumer.close()


async def test_transactions_span_both(zookeeper: str, java: str, judge39_classpath: str, tmp_path: Path) -> None:
    async with (
        running_cluster(zookeeper, tmp_path, 1) as cluster,
        kafka_beside(cluster, judge39_classpath, java, tmp_path / "kafka"),
    ):
        await cluster.until_agreed(lambda _c, brokers, _t: brokers == [1, KAFKA_ID])
        for topic, partitions in (("__transaction_state", TRANSACTION_PARTITIONS), ("orders", 2)):
            await create(cluster, topic, partitions, 2)
        await describe_group(cluster.brokers[KAFKA_ID].port, "group")

        async def in_sync(*broker_ids: int) -> dict[str, Any]:
            _c, _b, topics = await cluster.until_agreed(
                lambda _c, brokers, topics: (
                    brokers == list(broker_ids)
                    and len(topics) == 3
                    and all(isr == brokers for partitions in topics.values() for _leader, isr in partitions.values())
                )
            )
            return cast(dict[str, Any], topics)

        topics = await in_sync(1, KAFKA_ID)
        coordinators = {leader: index for index, (leader, _isr) in topics["__transaction_state"].items()}
        assert sorted(coordinators) == [1, KAFKA_ID]
        assert sorted(leader for leader, _isr in topics["orders"].values()) == [1, KAFKA_ID]
        names = {broker_id: transactional_id_on(index) for broker_id, index in coordinators.items()}
        groups = [f"group-{number}" for number in range(4)]
        expected: list[bytes] = []

        async def write(*written: str) -> None:
            for name in written:
                for group in groups:
                    await trio.to_thread.run_sync(copy_in_transactions, cluster.bootstrap, name, group)
                    expected.append(f"{name} True".encode())
            for index in range(2):
                assert await trio.to_thread.run_sync(read_committed, cluster.bootstrap, "orders", index) == expected
            for group in groups:
                assert await trio.to_thread.run_sync(committed, cluster.bootstrap, "orders", 1, group) == [1]

        # Each coordinates transactions with partitions and groups of the other.
        await write(*names.values())
        # Each continues the transactional ids of the other, and knows aborted transactions that it has replicated.
        assert await cluster.brokers[1].terminate() == 0
        await in_sync(KAFKA_ID)
        await write(names[1])
        await cluster.start(1)
        await in_sync(1, KAFKA_ID)
        await cluster.brokers[KAFKA_ID].kill()
        await in_sync(1)
        await write(*names.values())
        assert "Traceback" not in cluster.brokers[1].stderr
