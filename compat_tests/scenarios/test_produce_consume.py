"""Records are read as they were produced: offsets, keys, values, timestamps and headers, with every pair of clients."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import kafka
import pytest

from compat_tests.apache_kafka import JavaTools
from compat_tests.scenarios.records import (
    FIRST_TIMESTAMP_MS,
    Record,
    consume_with_confluent,
    consume_with_kafka_python,
    produce_with_confluent,
    produce_with_kafka_python,
    sample_records,
)

Produce = Callable[..., list[int]]
Consume = Callable[..., list[Record]]

PRODUCERS = {"confluent": produce_with_confluent, "kafka-python": produce_with_kafka_python}
CONSUMERS = {"confluent": consume_with_confluent, "kafka-python": consume_with_kafka_python}

each_producer = pytest.mark.parametrize("produce", PRODUCERS.values(), ids=PRODUCERS.keys())
each_consumer = pytest.mark.parametrize("consume", CONSUMERS.values(), ids=CONSUMERS.keys())


@each_producer
@each_consumer
def test_records_are_read_as_they_were_sent(bootstrap: str, topic: str, produce: Produce, consume: Consume) -> None:
    records = sample_records(100)
    assert produce(bootstrap, topic, records) == list(range(100))
    assert consume(bootstrap, topic, 100) == records


@each_consumer
def test_a_consumer_starts_in_the_middle_of_a_batch(bootstrap: str, topic: str, consume: Consume) -> None:
    records = sample_records(100)
    produce_with_confluent(bootstrap, topic, records, linger_ms=500)
    assert consume(bootstrap, topic, 37, start=63) == records[63:]


@each_consumer
def test_a_header_without_a_value_is_read(bootstrap: str, topic: str, consume: Consume) -> None:
    record = Record(0, b"key", b"value", FIRST_TIMESTAMP_MS, (("null", None), ("empty", b"")))
    produce_with_confluent(bootstrap, topic, [record])
    assert consume(bootstrap, topic, 1) == [record]


def test_a_timestamp_finds_the_first_record_at_or_after_it(bootstrap: str, topic: str) -> None:
    produce_with_confluent(bootstrap, topic, sample_records(100))
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap)
    partition = kafka.TopicPartition(topic, 0)
    found = consumer.offsets_for_times({partition: FIRST_TIMESTAMP_MS + 41_500})[partition]
    assert (found.offset, found.timestamp) == (42, FIRST_TIMESTAMP_MS + 42_000)
    assert consumer.offsets_for_times({partition: FIRST_TIMESTAMP_MS + 99_001})[partition] is None
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: 100}
    consumer.close()


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@each_producer
@each_consumer
def test_compressed_records_are_read(
    bootstrap: str, topic: str, produce: Produce, consume: Consume, codec: str
) -> None:
    records = sample_records(60)
    assert produce(bootstrap, topic, records, compression_type=codec) == list(range(60))
    assert consume(bootstrap, topic, 60) == records


@pytest.mark.parametrize("acks", [1, "all"])
@each_producer
def test_every_acks_setting_returns_offsets(bootstrap: str, topic: str, produce: Produce, acks: Any) -> None:
    idempotence = {"enable_idempotence": False} if acks == 1 else {}
    records = sample_records(10)
    assert produce(bootstrap, topic, records, acks=acks, **idempotence) == list(range(10))
    assert consume_with_confluent(bootstrap, topic, 10) == records


def test_kcat_reads_what_it_wrote(bootstrap: str, topic: str, kcat: str) -> None:
    lines = "".join(f"key{number}:value {number}\n" for number in range(50))
    common = ["-b", bootstrap, "-t", topic, "-p", "0"]
    subprocess.run([kcat, "-P", *common, "-K:", "-H", "origin=kcat"], input=lines, text=True, check=True, timeout=60)
    output = subprocess.run(
        [kcat, "-C", *common, "-o", "beginning", "-c", "50", "-q", "-J"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    rows = [json.loads(line) for line in output.splitlines()]
    assert [(row["offset"], row["key"], row["payload"], row["headers"]) for row in rows] == [
        (number, f"key{number}", f"value {number}", ["origin", "kcat"]) for number in range(50)
    ]


def test_the_java_console_tools_read_what_they_wrote(bootstrap: str, topic: str, java_tools: JavaTools) -> None:
    lines = "".join(f"key{number}\tvalue {number}\n" for number in range(50))
    java_tools.console_producer(bootstrap, topic, lines.encode(), "--property", "parse.key=true")
    assert java_tools.get_offsets(bootstrap, topic) == {0: 50}
    output = java_tools.console_consumer(
        bootstrap,
        topic,
        *("--partition", "0", "--offset", "earliest", "--max-messages", "50", "--property", "print.key=true"),
    )
    assert output == lines


def test_the_java_performance_tool_gets_every_record_acknowledged(
    bootstrap: str, topic: str, java_tools: JavaTools
) -> None:
    report = java_tools.producer_performance(bootstrap, topic, records=2000, size=100)
    assert "2000 records sent" in report
    assert java_tools.get_offsets(bootstrap, topic) == {0: 2000}
