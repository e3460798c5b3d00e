"""A cluster of three Apache Kafka 3.9 becomes a cluster of kbrokers and goes back again, one broker at a time.

Stock clients write and read all the time: an idempotent producer, a consumer group, and transactions. This is what
docs/migrating-from-kafka.md describes.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import Consumer, ElectionType, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.cluster.apache_kafka import start_kafka
from tests.cluster.conftest import SESSION_MS, TIMEOUT_SECONDS, RunningCluster, running_cluster
from tests.cluster.stock_clients import (
    Group,
    NumberedRecords,
    TransactionalRecords,
    committed,
    eventually,
    goes_on,
    read_all,
    read_committed,
)

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

IDS = (1, 2, 3)
PARTITIONS = 2
REPLICATED = {"min.insync.replicas": "2", "segment.bytes": "20000"}
TABLE = {
    "min.insync.replicas": "2",
    "cleanup.policy": "compact",
    "segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.01",
}
KEYS = 10
UPDATES = 200  # in each step
ALONE_RECORDS = 50
EARLIER_OFFSET = 7
CLEANER_BACKOFF_MS = 200
ELECTION_SECONDS = 5.0

Step = Callable[[int], Awaitable[object]]


@dataclass
class Migration:
    """The cluster, and how a broker is replaced.

    `way`: "stopped" and "killed" brokers leave their directory to the successor; with "emptied" replication fills it.
    """

    cluster: RunningCluster
    way: str
    classpath: str
    java: str

    async def start_kafka(self, broker_id: int) -> None:
        directory = self.cluster.directory
        settings = {
            "zookeeper.session.timeout.ms": SESSION_MS,
            "log.dirs": directory / str(broker_id),
            "offsets.topic.num.partitions": 5,
            "transaction.state.log.num.partitions": 5,
            "log.cleaner.backoff.ms": CLEANER_BACKOFF_MS,
        }
        home = directory / f"kafka-{broker_id}"
        await start_kafka(self.cluster, broker_id, settings, classpath=self.classpath, java=self.java, home=home)

    async def start_kbroker(self, broker_id: int) -> None:
        await self.cluster.start(broker_id, f"log.cleaner.backoff.ms={CLEANER_BACKOFF_MS}")

    async def replace(self, broker_id: int, start: Step) -> None:
        """Stops a broker and starts its successor. Returns when all replicas are in sync, and leaders are spread."""
        broker = self.cluster.brokers[broker_id]
        if self.way == "killed":
            await broker.kill()
        else:
            assert await broker.terminate() == 0, broker.stderr
        # A successor of Apache Kafka would not start beside the registration of a killed broker.
        await self.cluster.until_agreed(lambda _c, brokers, _t: broker_id not in brokers)
        if self.way == "emptied":
            shutil.rmtree(self.cluster.directory / str(broker_id))
        await start(broker_id)
        await self.until_in_sync()
        await self.elect_preferred()

    async def until_in_sync(self) -> None:
        await self.cluster.until_agreed(
            lambda _c, brokers, topics: (
                brokers == list(IDS)
                and all(
                    isr == brokers if name != "alone" else isr == [leader]
                    for name, partitions in topics.items()
                    for leader, isr in partitions.values()
                )
            )
        )

    async def elect_preferred(self) -> None:
        """Asks for the election until it is answered: Apache Kafka waits until its own metadata shows the leaders."""
        with trio.move_on_after(TIMEOUT_SECONDS):
            while not await trio.to_thread.run_sync(self._is_election_answered):
                pass
            return
        pytest.fail(f"no broker answered the election: {self.cluster.log()}")

    def _is_election_answered(self) -> bool:
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
        try:
            admin.elect_leaders(ElectionType.PREFERRED, None).result(ELECTION_SECONDS)
        except (KafkaException, TimeoutError):
            return False
        return True

    async def create(self, topic: str, replicas: list[list[int]], config: dict[str, str]) -> None:
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
        futures = admin.create_topics([NewTopic(topic, len(replicas), replica_assignment=replicas, config=config)])
        await trio.to_thread.run_sync(lambda: futures[topic].result(TIMEOUT_SECONDS))


class Table:
    """A compacted topic: newer records of a key replace older ones."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.written = 0

    def update(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "log_level": 0, "acks": "all"})
        for number in range(self.written, self.written + UPDATES):
            producer.produce("table", b"%d" % number, b"%d" % (number % KEYS))
            producer.poll(0)
            if number % KEYS == 0:
                producer.flush(TIMEOUT_SECONDS)  # many small batches: segments roll between batches
        assert producer.flush(TIMEOUT_SECONDS) == 0
        self.written += UPDATES

    @property
    def expected(self) -> dict[bytes, bytes]:
        return {b"%d" % (number % KEYS): b"%d" % number for number in range(self.written)}

    def read(self) -> list[tuple[bytes, bytes]]:
        config: dict[str, Any] = {"bootstrap.servers": self._bootstrap, "group.id": "reader", "log_level": 0}
        consumer = Consumer({**config, "enable.partition.eof": True, "enable.auto.commit": False})
        consumer.assign([TopicPartition("table", 0, 0)])
        records: list[tuple[bytes, bytes]] = []
        try:
            while True:
                for message in consumer.consume(500, timeout=0.5):
                    error = message.error()
                    if error is not None and error.code() == KafkaError._PARTITION_EOF:
                        return records
                    if error is None:
                        records.append((message.key() or b"", message.value() or b""))
        finally:
            consumer.close()

    async def check(self) -> None:
        """Waits until a cleaner has removed replaced records; the newest record of each key must still be there."""
        with trio.fail_after(TIMEOUT_SECONDS):
            while len(records := await trio.to_thread.run_sync(self.read)) > self.written // 2:
                pass
        assert dict(records) == self.expected


def write_alone(bootstrap: str) -> None:
    """Writes records to partitions with one replica."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(ALONE_RECORDS):
        for index in range(len(IDS)):
            producer.produce("alone", b"%d" % number, partition=index)
    assert producer.flush(TIMEOUT_SECONDS) == 0


def commit_earlier(bootstrap: str) -> None:
    """Commits offsets of a group that is not used any more."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "earlier", "log_level": 0})
    offsets = [TopicPartition("orders", index, EARLIER_OFFSET) for index in range(PARTITIONS)]
    try:
        while True:
            try:
                consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException as error:
                if not error.args[0].retriable():  # the offsets topic is being created
                    raise
            else:
                return
    finally:
        consumer.close()


@pytest.mark.parametrize(
    "way", ["stopped", pytest.param("killed", marks=pytest.mark.long), pytest.param("emptied", marks=pytest.mark.long)]
)
async def test_a_cluster_of_apache_kafka_becomes_kbrokers_and_goes_back(
    zookeeper: str, java: str, judge39_classpath: str, tmp_path: Path, way: str
) -> None:
    async with running_cluster(zookeeper, tmp_path, 0) as cluster:
        migration = Migration(cluster, way, judge39_classpath, java)
        for broker_id in IDS:
            await migration.start_kafka(broker_id)
            await cluster.until_agreed(lambda _c, brokers, _t: len(brokers) == len(cluster.brokers))
        spread = [[1, 2, 3], [2, 3, 1]]
        for topic in ("orders", "there", "back"):
            await migration.create(topic, spread, REPLICATED)
        await migration.create("table", [[3, 1, 2]], TABLE)
        bootstrap = cluster.bootstrap
        if way != "emptied":
            await migration.create("alone", [[1], [2], [3]], {})
            await trio.to_thread.run_sync(write_alone, bootstrap)
        await trio.to_thread.run_sync(commit_earlier, bootstrap)
        table = Table(bootstrap)
        group = Group(bootstrap, "orders", "readers")
        records = NumberedRecords(bootstrap, "orders", PARTITIONS, in_flight=1)

        async def work_goes_on(transactions: TransactionalRecords) -> None:
            await trio.to_thread.run_sync(table.update)
            done, read = len(transactions.committed) + 5, len(group.read) + 60
            await goes_on(records, cluster)
            await eventually(
                lambda: len(transactions.committed) > done and len(group.read) > read,
                lambda: (len(transactions.committed), transactions.errors, len(group.read), cluster.log()),
            )

        async def check(*written: tuple[str, TransactionalRecords]) -> None:
            await table.check()
            earlier = await trio.to_thread.run_sync(committed, bootstrap, "orders", PARTITIONS, "earlier")
            assert earlier == [EARLIER_OFFSET] * PARTITIONS
            for topic, transactions in written:
                for index in range(PARTITIONS):
                    values = await trio.to_thread.run_sync(read_committed, bootstrap, topic, index)
                    assert [value for value in values if value not in transactions.unknown] == transactions.committed
            for index in range(len(IDS) if way != "emptied" else 0):
                alone = await trio.to_thread.run_sync(read_all, bootstrap, "alone", index)
                assert alone == [b"%d" % number for number in range(ALONE_RECORDS)]

        there, back = (TransactionalRecords(bootstrap, topic, PARTITIONS) for topic in ("there", "back"))
        with group.running(), records.running():
            with there.running():
                await work_goes_on(there)
                for broker_id in IDS:
                    await migration.replace(broker_id, migration.start_kbroker)
                    await work_goes_on(there)
            await check(("there", there))
            assert "Traceback" not in cluster.log()
            with back.running():
                for broker_id in IDS:
                    await migration.replace(broker_id, migration.start_kafka)
                    await work_goes_on(back)
            await trio.to_thread.run_sync(records.stop)
            total = sum(map(len, records.sent))
            await eventually(lambda: len(group.read) == total, lambda: (len(group.read), total))

        await check(("there", there), ("back", back))
        assert records.failures == []
        assert records.acknowledged == records.sent
        for index in range(PARTITIONS):
            assert await trio.to_thread.run_sync(read_all, bootstrap, "orders", index) == records.sent[index]
        offsets = await trio.to_thread.run_sync(committed, bootstrap, "orders", PARTITIONS, "readers")
        assert offsets == [len(sent) for sent in records.sent]
