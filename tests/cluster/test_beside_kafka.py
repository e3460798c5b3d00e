"""A kbroker and an Apache Kafka 3.9 in one cluster: either may be the controller, and both give equal metadata."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from compat_tests.process import free_ports
from tests.cluster.conftest import SESSION_MS, TIMEOUT_SECONDS, RunningCluster, running_cluster
from tests.cluster.stock_clients import NumberedRecords, goes_on, read_all
from tests.cluster.test_cluster import all_led, create

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

KAFKA_ID = 10
OFFSETS_PARTITIONS = 5  # different from kbroker's default

PROPERTIES = """\
broker.id={broker_id}
listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={directory}/data
zookeeper.connect={connect}
zookeeper.session.timeout.ms={session_ms}
auto.leader.rebalance.enable=false
offsets.topic.num.partitions={offsets_partitions}
offsets.topic.replication.factor=2
"""
OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class Kafka:
    """An Apache Kafka broker with the interface of a broker of RunningCluster."""

    def __init__(self, process: trio.Process, port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self._log = log

    @property
    def stderr(self) -> str:
        return self._log.read_text()

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@contextmanager
def prepared(directory: Path, connect: str, port: int) -> Iterator[int]:
    """Creates Kafka's directory with its properties, and a file for its output."""
    directory.mkdir()
    text = PROPERTIES.format(
        broker_id=KAFKA_ID,
        port=port,
        directory=directory,
        connect=connect,
        session_ms=SESSION_MS,
        offsets_partitions=OFFSETS_PARTITIONS,
    )
    (directory / "server.properties").write_text(text)
    with (directory / "log.txt").open("wb") as log:
        yield log.fileno()


def replicas(directory: Path, topic: str) -> list[str]:
    return [path.name for path in directory.glob(f"{topic}-[0-9]")]


async def describe_group(admin: AdminClient, group: str) -> None:
    """Describes a group, which creates the offsets topic.

    A broker may name the coordinator before the coordinator has heard of its election. librdkafka does not retry then.
    """
    while True:
        described = admin.describe_consumer_groups([group])[group]
        try:
            await trio.to_thread.run_sync(lambda: described.result(TIMEOUT_SECONDS))  # noqa: B023
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_COORDINATOR:
                raise
        else:
            return


@asynccontextmanager
async def kafka_beside(cluster: RunningCluster, classpath: str, java: str, directory: Path) -> AsyncIterator[None]:
    """Starts an Apache Kafka that joins the cluster."""
    (port,) = free_ports(1)
    command = [java, *OPTIONS, "-cp", classpath, "kafka.Kafka", str(directory / "server.properties")]
    with prepared(directory, cluster.connect, port) as log:
        process = await trio.lowlevel.open_process(command, stdout=log, stderr=subprocess.STDOUT, cwd=directory)
    cluster.brokers[KAFKA_ID] = Kafka(process, port, directory / "log.txt")  # type: ignore[assignment]
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

        assert len(replicas(tmp_path / "1", "orders")) == 4

        # Kafka's broker sends CreateTopics to kbroker's controller.
        kafka_admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{cluster.brokers[KAFKA_ID].port}", "log_level": 0})
        await describe_group(kafka_admin, "group")
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
        assert replicas(tmp_path / "1", "orders") == []


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
        records = NumberedRecords(cluster.bootstrap, "orders", 2)

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
