"""What a test does with its broker beside its own clients: writing, reading, the clock, containers, warnings."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from inspect import currentframe
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from kbroker.errors import UserError
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages.join_group import JoinGroupRequestProtocol
from kbroker.testing import Broker, KafkaRecord, run_broker
from tests.broker.wire import connect

PATIENCE_SECONDS = 30


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics=["orders", "wide:3"]) as broker:
        yield broker


def values(broker: Broker, topic: str = "orders", count: int | None = None) -> list[object]:
    return [record.value for record in broker.records(topic, count, timeout=PATIENCE_SECONDS)]


# Records


def test_written_records_are_read_by_any_client(broker: Broker) -> None:
    broker.produce("orders", ["tea", b"milk", ("ada", "cup"), None])
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "a", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    messages = consumer.consume(4, PATIENCE_SECONDS)
    consumer.close()
    assert [(each.key(), each.value()) for each in messages] == [
        (None, b"tea"),
        (None, b"milk"),
        (b"ada", b"cup"),
        (None, None),
    ]


def test_a_record_has_all_that_was_written(broker: Broker) -> None:
    record = KafkaRecord("tea", key="ada", headers={"kind": "green", "none": None}, partition=2, timestamp=1_000)
    broker.produce("wide", [record])
    (read,) = broker.records("wide")
    headers = (("kind", b"green"), ("none", None))
    assert read == KafkaRecord(b"tea", b"ada", headers, 2, 1_000, offset=0, topic="wide")
    assert read.text == "tea"
    broker.produce("orders", [read._replace(partition=None)])
    assert broker.records("orders") == [read._replace(partition=0, topic="orders")]


def test_records_without_a_key_go_to_the_partitions_in_turn(broker: Broker) -> None:
    broker.produce("wide", ["a", "b", "c", "d"])
    assert [(read.partition, read.value) for read in broker.records("wide")] == [
        (0, b"a"),
        (0, b"d"),
        (1, b"b"),
        (2, b"c"),
    ]


def test_many_records_are_written_and_read(broker: Broker) -> None:
    numbers = [b"%d" % number * 100 for number in range(5_000)]
    broker.produce("orders", numbers)
    assert values(broker) == numbers


def test_it_waits_for_records_of_another_client(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.extend(values(broker, "later", count=2)))
    reader.start()
    broker.create_topic("later")
    for value in ("one", "two"):
        producer.produce("later", value)
        assert producer.flush(PATIENCE_SECONDS) == 0
    reader.join(PATIENCE_SECONDS)
    assert found == [b"one", b"two"]


def test_too_few_records_are_a_failure_that_shows_those_found(broker: Broker) -> None:
    broker.produce("orders", ["tea", "milk"])
    failures: list[str] = []

    def read() -> None:
        try:
            broker.records("orders", 3, timeout=3600)
        except AssertionError as failure:
            failures.append(str(failure))

    reader = threading.Thread(target=read)
    reader.start()
    partition = broker._expect_running()._running().partitions.get("orders", 0)
    assert partition is not None
    while not (partition.fetched_bytes and partition.fetch_waiters):
        threading.Event().wait(0.01)  # until the reader waits for a third record
    broker.advance_clock(hours=1)
    reader.join(PATIENCE_SECONDS)
    assert failures == ["Expected 3 records in topic orders within 3600 s, found 2: b'tea', b'milk'"]


def test_a_topic_that_never_comes_is_a_failure(broker: Broker) -> None:
    with pytest.raises(AssertionError, match=r"^Expected 1 record in topic missing within 0\.1 s, found 0$"):
        broker.records("missing", 1, timeout=0.1)


def test_more_records_than_expected_are_read_too(broker: Broker) -> None:
    broker.produce("orders", ["tea", "milk"])
    assert values(broker, count=1) == [b"tea", b"milk"]


def test_what_does_not_exist_is_named(broker: Broker) -> None:
    with pytest.raises(UserError, match="Topic missing does not exist"):
        broker.records("missing")
    with pytest.raises(UserError, match="Topic wide has 3 partitions: partition 3 does not exist"):
        broker.produce("wide", [KafkaRecord("tea", partition=3)])


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ("tea", r"Expected a list of records for topic orders, got one: 'tea'\. Write \['tea'\]\."),
        (b"tea", "got one: b'tea'"),
        (KafkaRecord("tea"), "Expected a list"),
        ([1], "Keys, values and header values are bytes, str or None, not int: 1"),
        ([("ada", {"cup": 1})], "not dict"),
        ([KafkaRecord("tea", headers={"n": 1})], "not int: 1"),  # type: ignore[arg-type]
    ],
)
def test_records_of_a_wrong_type_are_refused(broker: Broker, records: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        broker.produce("orders", records)
    assert broker.records("orders") == []


def test_records_of_open_and_aborted_transactions_are_not_read(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
    producer.init_transactions(PATIENCE_SECONDS)
    for value, is_committed in (("no", False), ("yes", True)):
        producer.begin_transaction()
        producer.produce("orders", value)
        assert producer.flush(PATIENCE_SECONDS) == 0
        if is_committed:
            producer.commit_transaction(PATIENCE_SECONDS)
        else:
            producer.abort_transaction(PATIENCE_SECONDS)
    assert values(broker) == [b"yes"]
    assert [read.value for read in broker.records("orders", read_committed=False)] == [b"no", b"yes"]


def test_faults_do_not_hide_what_a_topic_holds(broker: Broker) -> None:
    broker.faults.fail("Produce", code="NOT_LEADER_OR_FOLLOWER", times=None)
    broker.faults.drop("Metadata", times=None)
    fault = broker.faults.not_leader("orders")
    broker.produce("orders", ["tea"])
    assert values(broker, count=1) == [b"tea"]
    assert fault.hits == 0


async def test_a_trio_program_writes_and_reads_too(tmp_path: Path) -> None:
    async with run_broker(topics=["orders"], data_dir=tmp_path) as bootstrap:
        await bootstrap.broker.produce("orders", ["tea"])
        assert [read.value for read in await bootstrap.broker.records("orders", 1)] == [b"tea"]


# Time


def test_retention_acts_when_the_clock_is_advanced(broker: Broker) -> None:
    broker.produce("orders", ["old"])
    before = broker.now_ms
    broker.advance_clock(days=8)
    assert broker.now_ms - before >= 8 * 24 * 3600 * 1000
    assert values(broker) == []
    broker.produce("orders", ["new"])
    broker.advance_clock(hours=1)
    assert values(broker) == [b"new"]


async def test_a_session_ends_when_the_clock_is_advanced() -> None:
    with Broker(topics=["orders"]) as broker:
        async with connect(broker.port) as client:
            await client.ask("FindCoordinator", 3, key="readers")
            joined = await client.ask(
                "JoinGroup",
                3,
                group_id="readers",
                session_timeout_ms=120_000,
                rebalance_timeout_ms=600_000,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range")],
            )
            assert joined.error_code == 0
            member = {"group_id": "readers", "member_id": joined.member_id, "generation_id": joined.generation_id}
            broker.advance_clock(seconds=30)
            # The leader of a new generation has not synced yet.
            assert (await client.ask("Heartbeat", 3, **member)).error_code in (
                ErrorCode.NONE,
                ErrorCode.REBALANCE_IN_PROGRESS,
            )
            broker.advance_clock(minutes=2)
            assert (await client.ask("Heartbeat", 3, **member)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_clients_stay_connected_when_the_clock_is_advanced(broker: Broker) -> None:
    lost: list[object] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "error_cb": lost.append})
    producer.produce("orders", "one")
    assert producer.flush(PATIENCE_SECONDS) == 0
    broker.advance_clock(hours=1)
    producer.produce("orders", "two")
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert lost == []
    assert values(broker) == [b"one", b"two"]


def test_the_clock_keeps_its_time_over_a_restart_and_does_not_go_back(broker: Broker) -> None:
    broker.advance_clock(minutes=30)
    before = broker.now_ms
    broker.stop()
    broker.start()
    assert broker.now_ms >= before
    with pytest.raises(UserError, match="cannot go back"):
        broker.advance_clock(seconds=-1)


# Containers


def test_clients_in_containers_get_an_address_that_they_reach() -> None:
    with Broker(topics=["orders"], container_host="localhost", container_bind="127.0.0.1") as broker:
        host, _, port = broker.container_bootstrap.rpartition(":")
        assert host == "localhost"
        assert int(port) != broker.port
        for address, expected in ((f"127.0.0.1:{port}", f"localhost:{port}"), (broker.bootstrap, broker.bootstrap)):
            brokers = AdminClient({"bootstrap.servers": address}).list_topics(timeout=PATIENCE_SECONDS).brokers
            assert [f"{each.host}:{each.port}" for each in brokers.values()] == [expected]
        before = broker.container_bootstrap
        broker.stop()
        broker.start()
        assert broker.container_bootstrap == before


def test_without_a_host_for_containers_there_is_no_listener_for_them(broker: Broker) -> None:
    with pytest.raises(UserError, match="container_host"):
        _ = broker.container_bootstrap
    with pytest.raises(UserError, match="either container_host or listeners"):
        Broker(container_host="host.docker.internal", listeners="PLAINTEXT://127.0.0.1:0")


# Warnings


def here() -> int:
    frame = currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_each_unknown_setting_is_one_warning_at_the_line_of_the_caller() -> None:
    with warnings.catch_warnings(record=True, action="always") as caught:
        line = here() + 1
        with Broker(num_partition=3, log_retention_hour=1) as broker:
            broker.stop()
            broker.start()
    assert [(warning.filename, warning.lineno) for warning in caught] == [(__file__, line)] * 2
    assert "num.partition" in str(caught[0].message)


async def test_a_trio_program_is_warned_at_its_line(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True, action="always") as caught:
        line = here() + 1
        async with run_broker(data_dir=tmp_path, num_partition=3):
            pass
    assert [(warning.filename, warning.lineno) for warning in caught] == [(__file__, line)]
