"""Compacted topics: clients of both brokers finally see the last value of each key, at its original offset."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaTopicPartition

from compat_tests.apache_kafka import JavaTools, run_apache_kafka
from compat_tests.process import run_kbroker

EAGER = {"log.cleaner.backoff.ms": "100"}
SEGMENT_MS = 100
COMPACTED = {"cleanup.policy": "compact", "segment.ms": str(SEGMENT_MS), "min.cleanable.dirty.ratio": "0.01"}
DEADLINE_S = 60.0
FILLER = b"filler"

Found = dict[int, tuple[bytes | None, bytes | None]]
"""Offset -> key and value."""


class Broker(NamedTuple):
    bootstrap: str
    data: Path


@pytest.fixture(scope="module")
def eager_kbroker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("kbroker-compacting")
    eager = [argument for name, value in EAGER.items() for argument in ("--set", f"{name}={value}")]
    with run_kbroker(directory, "--data-dir", str(directory / "data"), *eager) as (bootstrap, _):
        yield Broker(bootstrap, directory / "data")


@pytest.fixture(scope="module")
def eager_apache_kafka(java_tools: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("apache-kafka-compacting")
    more = "".join(f"{name}={value}\n" for name, value in EAGER.items())
    with run_apache_kafka(java_tools, directory, more) as bootstrap:
        yield Broker(bootstrap, directory)


@pytest.fixture
def broker(broker_name: str, request: pytest.FixtureRequest) -> Broker:
    fixtures = {"kbroker": "eager_kbroker", "apache-kafka": "eager_apache_kafka"}
    if broker_name not in fixtures:
        pytest.skip("needs a broker with a small log.cleaner.backoff.ms")
    found: Broker = request.getfixturevalue(fixtures[broker_name])
    return found


def create(broker: Broker, topic: str, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    wanted = COMPACTED | {name.replace("_", "."): value for name, value in configs.items()}
    for future in admin.create_topics([NewTopic(topic, 1, 1, config=wanted)]).values():
        future.result(DEADLINE_S)


class Writer:
    """Writes keyed records in several segments and remembers the last offset of each key."""

    def __init__(self, broker: Broker, topic: str, **options: Any) -> None:
        given = {name.replace("_", "."): value for name, value in options.items()}
        self.producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5} | given)
        self.topic = topic
        self.newest: dict[bytes, tuple[int, bytes | None]] = {}

    def _on_delivery(self, error: Any, message: Any) -> None:
        assert error is None, error
        self.newest[message.key()] = (message.offset(), message.value())

    def write(self, *pairs: tuple[bytes, bytes | None]) -> None:
        for key, value in pairs:
            self.producer.produce(self.topic, value, key=key, partition=0, on_delivery=self._on_delivery)
        assert self.producer.flush(DEADLINE_S) == 0

    def close_segment(self) -> None:
        """Rolls the active segment, and a filler segment after it: the cleaner skips the active segment."""
        for _ in range(2):
            time.sleep(2 * SEGMENT_MS / 1000)
            self.write((FILLER, b"x"))

    def fill(self) -> None:
        for number in range(4):
            self.write(*((b"key-%d" % (index % 7), b"%d-%d" % (number, index)) for index in range(50)))
            time.sleep(2 * SEGMENT_MS / 1000)
        self.close_segment()


def read(broker: Broker, topic: str) -> Found:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": topic, "enable.partition.eof": True}
    )
    found: Found = {}
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + DEADLINE_S
        while True:
            assert time.monotonic() < deadline, "the end was not reached"
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                return found
            offset = message.offset()
            assert offset is not None
            found[offset] = (message.key(), message.value())
    finally:
        consumer.close()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "the condition was not reached"
        time.sleep(0.2)


def without_filler(
    found: Found,
) -> Found:
    return {offset: pair for offset, pair in found.items() if pair[0] != FILLER}


def wait_compacted(broker: Broker, topic: str, writer: Writer) -> Found:
    wanted: Found = {offset: (key, value) for key, (offset, value) in writer.newest.items() if key != FILLER}
    wait_for(lambda: without_filler(read(broker, topic)) == wanted)
    return wanted


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_last_value_of_each_key_stays_at_its_offset(broker: Broker, topic: str, codec: str) -> None:
    create(broker, topic)
    writer = Writer(broker, topic, compression_type=codec)
    writer.fill()
    wanted = wait_compacted(broker, topic, writer)
    assert len(wanted) == 7
    consumer: Any = KafkaConsumer(bootstrap_servers=broker.bootstrap)
    try:
        partition = KafkaTopicPartition(topic, 0)
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition])[partition] == writer.newest[FILLER][0] + 1
        consumer.assign([partition])
        consumer.seek(partition, 3)  # removed by compaction
        found = [record for _ in range(3) for batch in consumer.poll(2000).values() for record in batch]
        assert {record.offset: (record.key, record.value) for record in found if record.key != FILLER} == wanted
    finally:
        consumer.close()


def test_tombstones_delete_their_key_and_are_removed_later(broker: Broker, topic: str) -> None:
    create(broker, topic, delete_retention_ms="100")
    writer = Writer(broker, topic)
    writer.fill()
    writer.write((b"key-3", None), (b"key-5", None))

    def is_gone() -> bool:
        writer.close_segment()
        keys = {pair[0] for pair in read(broker, topic).values()}
        return {b"key-3", b"key-5"}.isdisjoint(keys)

    wait_for(is_gone)
    keys = {pair[0] for pair in without_filler(read(broker, topic)).values()}
    assert keys == {b"key-0", b"key-1", b"key-2", b"key-4", b"key-6"}


def test_an_idempotent_producer_continues_after_its_records_were_compacted(broker: Broker, topic: str) -> None:
    create(broker, topic)
    first = Writer(broker, topic, enable_idempotence=True)
    first.fill()
    second = Writer(broker, topic)
    second.fill()
    wait_compacted(broker, topic, second)
    first.fill()
    wait_compacted(broker, topic, first)


def test_min_compaction_lag_ms_keeps_recent_records(broker: Broker, topic: str) -> None:
    create(broker, topic, min_compaction_lag_ms="600000")
    writer = Writer(broker, topic)
    writer.fill()
    other = f"{topic}-other"
    create(broker, other)
    beside = Writer(broker, other)
    beside.fill()
    wait_compacted(broker, other, beside)
    assert len(without_filler(read(broker, topic))) == 200


@pytest.mark.jvm
def test_kafkas_tool_reads_compacted_files(
    eager_kbroker: Broker, topic: str, java_tools: JavaTools, request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("--bootstrap"):
        pytest.skip("needs the files of a broker")
    create(eager_kbroker, topic, index_interval_bytes="100")
    writer = Writer(eager_kbroker, topic, compression_type="lz4")
    writer.fill()
    writer.write((b"key-3", None))
    writer.close_segment()
    wait_compacted(eager_kbroker, topic, writer)
    directory = eager_kbroker.data / f"{topic}-0"
    logs = sorted(directory.glob("*.log"))
    text = java_tools.dump_log(*logs)
    valid = re.findall(r"isvalid: (\w+)", text)
    assert valid
    assert set(valid) == {"true"}
    assert "deleteHorizonMs: OptionalLong[" in text
    assert set(map(int, re.findall(r"^\| offset: (\d+)", text, re.MULTILINE))) >= set(read(eager_kbroker, topic))
    indexes = [path for suffix in ("index", "timeindex") for path in sorted(directory.glob(f"*.{suffix}"))]
    said = java_tools.dump_log(*indexes, options=("--index-sanity-check",))
    assert said.count("passed sanity check") + said.count("is empty") == len(indexes), said
    assert said.count("passed sanity check") > 1
    checked = java_tools.dump_log(*indexes, options=("--verify-index-only",))
    assert not re.search(r"ismatch|out of order|Found timestamp", checked), checked
    command = [sys.executable, "-m", "kbroker", "dump-log", *map(str, logs), "--deep-iteration", "--print-data-log"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == text
