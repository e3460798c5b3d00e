"""Stock clients that run while brokers are killed: a producer with acks=all, and a consumer group."""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import trio
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster

_QUIET: dict[str, Any] = {"log_level": 0, "topic.metadata.refresh.interval.ms": 1000}
_OUTSTANDING = 100
# librdkafka reports that a broker is down, but retries: this is not a failure of the producer.
_PASSING = frozenset((KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT))


class InThread(ABC):
    """A client that works in a thread until its `with` block ends."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def _run(self) -> None:
        """Works until `_stop` is set."""

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(2 * TIMEOUT_SECONDS)  # a call that never ends must not keep the brokers running


class NumberedRecords(InThread):
    """Writes 0, 1, 2, ... to the partitions of a topic in turn, with an idempotent producer.

    `in_flight`: 1 if an Apache Kafka may become a leader. With more, librdkafka writes records twice when it answers a
    later batch before it answers the retry of an earlier one (its issue 4953; kbroker avoids that).
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, *, in_flight: int = 5) -> None:
        self.sent: list[list[bytes]] = [[] for _ in range(partitions)]
        self.acknowledged: list[list[bytes]] = [[] for _ in range(partitions)]
        self.failures: list[str] = []
        self._topic = topic
        super().__init__()
        self._producer = Producer(
            {
                **_QUIET,
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "max.in.flight": in_flight,
                "linger.ms": 1,
                "message.timeout.ms": int(TIMEOUT_SECONDS * 1000),
                "error_cb": self._on_error,
            }
        )

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged))

    def _on_error(self, error: KafkaError) -> None:
        if error.code() not in _PASSING:
            self.failures.append(str(error))

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        partition, value = message.partition(), message.value()
        assert partition is not None
        assert value is not None
        self.acknowledged[partition].append(value)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            partition, value = number % len(self.sent), b"%d" % number
            self._producer.produce(self._topic, value, partition=partition, on_delivery=self._on_delivery)
            self.sent[partition].append(value)
            number += 1
            self._producer.poll(0.002)
            while len(self._producer) > _OUTSTANDING and not self._stop.is_set():
                self._producer.poll(0.05)
        self._producer.flush(TIMEOUT_SECONDS)


class Group(InThread):
    """A group member that commits the records that it has read."""

    def __init__(self, bootstrap: str, topic: str, name: str) -> None:
        super().__init__()
        self.read: set[bytes] = set()
        self._topic = topic
        self._config = {
            **_QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }

    def _run(self) -> None:
        consumer = Consumer(self._config)
        consumer.subscribe([self._topic])
        while not self._stop.is_set():
            messages = [message for message in consumer.consume(200, timeout=0.1) if message.error() is None]
            self.read.update(value for message in messages if (value := message.value()) is not None)
            if messages:
                try:
                    consumer.commit(asynchronous=False)
                except KafkaException:
                    continue  # the coordinator is down: the next commit includes this one
        with suppress(KafkaException):  # nothing to commit
            consumer.commit(asynchronous=False)
        consumer.close()


class RackConsumer(InThread):
    """Reads every partition of a topic from its start, in a rack."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, rack: str, **config: str) -> None:
        super().__init__()
        self.read: list[list[bytes]] = [[] for _ in range(partitions)]
        self.brokers: list[int] = []
        """The broker that each partition is fetched from, as librdkafka's statistics say."""
        self.failures: list[str] = []
        self._topic = topic
        self._config = {
            **_QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": "racks",
            "client.rack": rack,
            "enable.auto.commit": False,
            "statistics.interval.ms": 100,
            "stats_cb": self._on_statistics,
            **{name.replace("_", "."): value for name, value in config.items()},
        }

    def _on_statistics(self, text: str) -> None:
        found = json.loads(text)["topics"].get(self._topic, {"partitions": {}})["partitions"]
        self.brokers = [found.get(str(index), {"broker": -1})["broker"] for index in range(len(self.read))]

    def _run(self) -> None:
        consumer = Consumer(self._config)
        consumer.assign([TopicPartition(self._topic, index, 0) for index in range(len(self.read))])
        while not self._stop.is_set():
            for message in consumer.consume(500, timeout=0.1):
                error, partition, value = message.error(), message.partition(), message.value()
                if error is None:
                    assert partition is not None
                    assert value is not None
                    self.read[partition].append(value)
                elif error.code() not in _PASSING:
                    self.failures.append(str(error))
        consumer.close()


class TransactionalRecords(InThread):
    """Writes 0, 1, 2, ... to every partition of a topic, each number in one transaction. Every third one is aborted."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__()
        self.committed: list[bytes] = []
        self.aborted: list[bytes] = []
        self.unknown: list[bytes] = []
        self.errors: list[str] = []
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions

    def _run(self) -> None:
        producer: Producer | None = None
        number = 0
        while not self._stop.is_set():
            value = b"%d" % number
            is_commit = number % 3 != 2
            try:
                if producer is None:
                    producer = transactional_producer(self._bootstrap, "writer")
                self._write(producer, value, is_commit)
            except KafkaException as error:
                self.errors.append(str(error))
                self.unknown.append(value)
                producer = None  # the next one with this transactional id ends the transaction
            else:
                (self.committed if is_commit else self.aborted).append(value)
            number += 1

    def _write(self, producer: Producer, value: bytes, is_commit: bool) -> None:
        producer.begin_transaction()
        for index in range(self._partitions):
            producer.produce(self._topic, value, partition=index)
        if is_commit:
            _retried(producer.commit_transaction)
        else:
            producer.flush(TIMEOUT_SECONDS)
            _retried(producer.abort_transaction)


def transactional_producer(bootstrap: str, name: str) -> Producer:
    producer = Producer({**_QUIET, "bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 1})
    _retried(producer.init_transactions)
    return producer


def _retried(call: Callable[[float], object]) -> None:
    """Calls again after errors that librdkafka calls retriable. It limits the time of each call."""
    for _ in range(3):
        try:
            call(TIMEOUT_SECONDS)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


async def eventually(condition: Callable[[], bool], problem: Callable[[], object]) -> None:
    """Polls the condition: stock clients work in threads and set no trio event."""
    with trio.move_on_after(TIMEOUT_SECONDS):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.01)
        return
    pytest.fail(f"it did not come to that: {problem()}")


async def goes_on(records: NumberedRecords, cluster: RunningCluster, *, by: int = 60) -> None:
    enough = records.count + by
    await eventually(lambda: records.count > enough, lambda: (records.failures, cluster.log()))


def committed(bootstrap: str, topic: str, partitions: int, group: str) -> list[int]:
    consumer = Consumer({**_QUIET, "bootstrap.servers": bootstrap, "group.id": group})
    try:
        wanted = [TopicPartition(topic, index) for index in range(partitions)]
        return [partition.offset for partition in consumer.committed(wanted, timeout=TIMEOUT_SECONDS)]
    finally:
        consumer.close()


def read_all(bootstrap: str, topic: str, partition: int) -> list[bytes]:
    """Returns all committed records of a partition."""
    consumer = Consumer({**_QUIET, "bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    try:
        wanted = TopicPartition(topic, partition, 0)
        consumer.assign([wanted])
        _start, end = consumer.get_watermark_offsets(wanted, timeout=TIMEOUT_SECONDS)
        values: list[bytes] = []
        while consumer.position([wanted])[0].offset < end:
            for message in consumer.consume(500, timeout=0.5):
                error, value = message.error(), message.value()
                if error is None:
                    assert value is not None
                    values.append(value)
                else:
                    assert error.code() in _PASSING, error
        return values
    finally:
        consumer.close()


def read_committed(bootstrap: str, topic: str, partition: int) -> list[bytes]:
    """Returns the records of a partition up to its last stable offset, without aborted ones."""
    config = {**_QUIET, "bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
    consumer = Consumer({**config, "enable.partition.eof": True, "isolation.level": "read_committed"})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        values: list[bytes] = []
        while True:
            for message in consumer.consume(500, timeout=0.5):
                error, value = message.error(), message.value()
                if error is None:
                    assert value is not None
                    values.append(value)
                elif error.code() == KafkaError._PARTITION_EOF:
                    return values
                else:
                    assert error.code() in _PASSING, error
    finally:
        consumer.close()


NO_COORDINATOR_YET = (
    KafkaError._TIMED_OUT,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)


async def describe_group(port: int, group: str) -> int:
    """Describes a group through one broker, which creates the offsets topic. Returns the id of the coordinator.

    The broker may name a coordinator that has not heard of its election yet, or that still loads the group. librdkafka
    reports that, or keeps the connection to a broker that it no longer asks: each attempt has its own client.
    """

    def describe() -> int | None:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
        try:
            described = admin.describe_consumer_groups([group], request_timeout=10)[group].result(TIMEOUT_SECONDS)
        except KafkaException as error:
            if error.args[0].code() not in NO_COORDINATOR_YET:
                raise
            return None
        return int(described.coordinator.id)

    with trio.fail_after(3 * TIMEOUT_SECONDS):
        while (coordinator := await trio.to_thread.run_sync(describe)) is None:
            pass
        return coordinator
