"""A broker in a thread, for programs of every kind."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from kafka import KafkaConsumer, KafkaProducer

from kbroker.errors import UserError
from kbroker.protocol.error_codes import ErrorCode
from kbroker.testing import Broker
from tests.broker.batches import make_batch
from tests.broker.wire import connect

PATIENCE_SECONDS = 30


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made, for one test alone."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def threads_of_brokers() -> list[str]:
    return [worker.name for worker in threading.enumerate() if worker.name == "kbroker"]


def produce(broker: Broker, topic: str, *values: bytes, partition: int = 0) -> None:
    """By confluent-kafka. Raises what the broker refused."""
    errors: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: object) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    producer.list_topics(topic, PATIENCE_SECONDS)  # or a partition that is not there would be waited for
    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=on_delivery)
    assert producer.flush(PATIENCE_SECONDS) == 0
    if errors:
        raise KafkaException(errors[0])


def consume(broker: Broker, topic: str, count: int) -> list[bytes]:
    """By a consumer group of confluent-kafka."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        return [message.value() or b"" for message in consumer.consume(count, PATIENCE_SECONDS)]
    finally:
        consumer.close()


# Clients


def test_confluent_kafka_produces_and_consumes() -> None:
    with Broker(topics=["orders"]) as broker:
        produce(broker, "orders", b"one", b"two")
        assert consume(broker, "orders", 2) == [b"one", b"two"]


def test_kafka_python_produces_and_consumes() -> None:
    with Broker(topics=["orders"]) as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
        producer.send("orders", b"one").get(PATIENCE_SECONDS)
        producer.close()
        consumer = KafkaConsumer(
            "orders",
            bootstrap_servers=broker.bootstrap,
            group_id="readers",
            auto_offset_reset="earliest",
            consumer_timeout_ms=PATIENCE_SECONDS * 1000,
        )
        assert next(consumer).value == b"one"
        consumer.close()


def test_an_asyncio_program_uses_it_too() -> None:
    async def exchange(broker: Broker) -> bytes:
        broker.create_topic("orders")
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            await producer.send_and_wait("orders", b"one")
        async with AIOKafkaConsumer(
            "orders", bootstrap_servers=broker.bootstrap, group_id="readers", auto_offset_reset="earliest"
        ) as consumer:
            value: bytes = (await consumer.getone()).value
            return value

    with Broker() as broker:
        assert asyncio.run(exchange(broker)) == b"one"


async def test_a_trio_program_may_have_one_in_a_thread() -> None:
    with Broker() as broker:
        broker.create_topic("orders")
        fault = broker.faults.fail("Produce", code="NOT_LEADER_OR_FOLLOWER")
        async with connect(broker.port) as client:
            assert (await client.produce("orders", make_batch())).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (await client.produce("orders", make_batch())).error_code == 0
        assert fault.hits == 1


def test_a_unittest_starts_one_for_its_class() -> None:
    class OrdersTest(unittest.TestCase):
        @classmethod
        def setUpClass(cls) -> None:
            cls.broker = Broker(topics=["orders"]).start()  # type: ignore[attr-defined]
            cls.addClassCleanup(cls.broker.close)  # type: ignore[attr-defined]

        def test_it_is_there(self) -> None:
            assert self.broker.topics == ["orders"]  # type: ignore[attr-defined]

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(OrdersTest).run(result)
    assert result.testsRun == 1
    assert result.wasSuccessful(), result.errors + result.failures
    assert threads_of_brokers() == []


# Faults, as stock clients bear them


def test_a_producer_outlives_a_partition_without_a_leader() -> None:
    with Broker(topics=["orders"]) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "retry.backoff.ms": 10})
        delivered = []
        with broker.faults.not_leader("orders", 0) as fault:
            producer.produce("orders", b"one", on_delivery=lambda error, message: delivered.append((error, message)))
            while not fault.hits:
                producer.poll(0.01)
            assert delivered == []
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert delivered[0][0] is None
        assert consume(broker, "orders", 1) == [b"one"]


def test_an_idempotent_producer_writes_once_though_its_answer_is_lost() -> None:
    with Broker(topics=["orders"]) as broker:
        fault = broker.faults.drop("Produce", carried_out=True)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "retry.backoff.ms": 10})
        producer.produce("orders", b"one")
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert fault.hits == 1
        produce(broker, "orders", b"two")
        assert consume(broker, "orders", 2) == [b"one", b"two"]


def test_an_error_that_is_final_reaches_the_program() -> None:
    with Broker(topics=["orders"]) as broker:
        broker.faults.fail("Produce", code="TOPIC_AUTHORIZATION_FAILED")
        with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
            produce(broker, "orders", b"one")


# Life and death


def test_nothing_is_left_behind(temporary: Path) -> None:
    with Broker(topics=["orders"]) as broker:
        produce(broker, "orders", b"one")
        assert len(os.listdir(temporary)) == len(threads_of_brokers()) == 1
    assert os.listdir(temporary) == []
    assert threads_of_brokers() == []
    # trio keeps an idle worker thread for some seconds, to use it again; it holds up nothing.
    left = [worker for worker in threading.enumerate() if worker.name.startswith("Trio thread")]
    assert all(worker.daemon for worker in left)


def test_nothing_is_left_behind_by_a_test_that_fails(temporary: Path) -> None:
    with pytest.raises(ZeroDivisionError), Broker():
        raise ZeroDivisionError
    assert os.listdir(temporary) == []
    assert threads_of_brokers() == []


def test_a_broker_that_cannot_start_says_why_and_leaves_nothing_behind(temporary: Path) -> None:
    with pytest.raises(UserError, match="or/ders"), Broker(topics=["or/ders"]):
        pass
    assert os.listdir(temporary) == []
    assert threads_of_brokers() == []


def test_a_broker_that_nobody_holds_any_more_is_cleared_away(temporary: Path) -> None:
    broker = Broker().start()
    del broker
    gc.collect()
    assert os.listdir(temporary) == []
    assert threads_of_brokers() == []


def test_a_program_that_forgets_its_broker_ends_all_the_same(tmp_path: Path) -> None:
    source = """
        from kbroker.testing import Broker
        broker = Broker().start()
        print(broker.bootstrap)
    """
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(source)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("127.0.0.1:")
    assert [name for name in os.listdir(tmp_path) if name.startswith("kbroker-")] == []


def test_a_fork_that_ends_leaves_the_broker_to_its_parent(tmp_path: Path) -> None:
    source = """
        import os, sys
        from kbroker.testing import Broker
        with Broker(topics=["orders"]) as broker:
            child = os.fork()
            if child == 0:
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            broker.stop()
            assert broker.start().topics == ["orders"]
    """
    # Since 3.12 Python warns of every fork beside a thread.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(source)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_it_starts_again_on_its_port_with_what_it_had() -> None:
    with Broker(topics=["orders"]) as broker:
        before = broker.bootstrap
        produce(broker, "orders", b"one")
        broker.stop()
        assert not broker.is_running
        with pytest.raises(UserError, match="not running"):
            broker.create_topic("events")
        broker.start()
        assert broker.bootstrap == before
        assert consume(broker, "orders", 1) == [b"one"]


def test_a_fault_asked_for_while_it_is_stopped_stands_when_it_starts() -> None:
    with Broker(topics=["orders"]) as broker:
        broker.stop()
        broker.faults.fail("Produce", code="TOPIC_AUTHORIZATION_FAILED")
        broker.start()
        with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
            produce(broker, "orders", b"one")


def test_a_directory_that_is_given_is_kept(tmp_path: Path, temporary: Path) -> None:
    with Broker(data_dir=tmp_path / "data", topics=["orders"]):
        pass
    assert os.listdir(temporary) == []
    with Broker(data_dir=tmp_path / "data") as broker:
        assert broker.topics == ["orders"]


def test_several_brokers_live_side_by_side() -> None:
    with Broker(topics=["a"]) as one, Broker(topics=["b"]) as other:
        assert one.bootstrap != other.bootstrap
        assert (one.topics, other.topics) == (["a"], ["b"])


def test_settings_and_configs_act() -> None:
    with Broker(num_partitions=3) as broker:
        broker.create_topic("orders")
        produce(broker, "orders", b"one", partition=2)
        with pytest.raises(KafkaException, match="UNKNOWN_PARTITION"):
            produce(broker, "orders", b"one", partition=3)
        broker.create_topic("tiny", 1, max_message_bytes=200)
        with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
            produce(broker, "tiny", b"x" * 500)


def test_topics_come_and_go() -> None:
    with Broker() as broker:
        broker.create_topic("orders", 2)
        with pytest.raises(UserError, match="orders"):
            broker.create_topic("orders")
        broker.delete_topic("orders")
        assert broker.topics == []


def test_it_says_where_it_is() -> None:
    broker = Broker()
    assert "not running" in repr(broker)
    with pytest.raises(UserError, match="with"):
        broker.bootstrap  # noqa: B018
    with broker:
        assert broker.bootstrap in repr(broker)
        with pytest.raises(UserError, match="already running"):
            broker.start()
    broker.close()


def test_one_that_dies_of_a_bug_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails_at_once(self: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("kbroker.server.maintenance.Maintenance.run", fails_at_once)
    with pytest.raises((ZeroDivisionError, BaseExceptionGroup)) as raised:
        Broker().start().stop()
    assert "ZeroDivisionError" in repr(raised.value)
    assert threads_of_brokers() == []


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_users_log_in_over_tls(mechanism: str) -> None:
    with Broker(topics=["orders"], users={"alice": "s3cret"}, tls=True) as broker:
        settings: dict[str, Any] = {**broker.client_settings("alice", mechanism)}
        assert settings["security.protocol"] == "SASL_SSL"
        producer = Producer(settings)
        producer.produce("orders", "tea")
        assert producer.flush(30) == 0
        assert [record.text for record in broker.records("orders", 1)] == ["tea"]
