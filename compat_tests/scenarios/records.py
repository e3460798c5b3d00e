"""Records that the scenarios send and expect, and functions to send and read them with each Python client.

Reads partitions by assignment, without consumer groups.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import Any, NamedTuple

import confluent_kafka
import kafka

__all__ = [
    "FIRST_TIMESTAMP_MS",
    "Record",
    "consume_with_confluent",
    "consume_with_kafka_python",
    "produce_with_confluent",
    "produce_with_kafka_python",
    "sample_records",
]

# Recent, so that retention does not delete the records; whole seconds, so that failures are easy to read.
FIRST_TIMESTAMP_MS = (int(time.time()) - 3600) * 1000
DEADLINE_S = 30.0


class Record(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...]


def sample_records(count: int) -> list[Record]:
    """Returns records with normal, empty, null and repeated keys, values and headers.

    No null headers: kafka-python cannot send them.
    """
    return [
        Record(
            offset=number,
            key=None if number % 7 == 0 else f"key-{number}".encode(),
            value=None if number % 7 == 1 else b"" if number % 7 == 2 else f"value {number} ".encode() * (number + 1),
            timestamp_ms=FIRST_TIMESTAMP_MS + number * 1000,
            headers=(("number", str(number).encode()), ("number", b"again"), ("empty", b"")) if number % 2 else (),
        )
        for number in range(count)
    ]


def produce_with_confluent(bootstrap: str, topic: str, records: list[Record], **options: Any) -> list[int]:
    """Sends records; returns the acknowledged offsets in the order of sending."""
    config = {"bootstrap.servers": bootstrap, "linger.ms": 5, "message.timeout.ms": 30_000}
    producer = confluent_kafka.Producer(config | {name.replace("_", "."): value for name, value in options.items()})
    offsets: dict[int, int] = {}
    for index, record in enumerate(records):

        def on_delivery(error: Any, message: Any, index: int = index) -> None:
            assert error is None, error
            offsets[index] = message.offset()

        producer.produce(
            topic,
            key=record.key,
            value=record.value,
            partition=0,
            timestamp=record.timestamp_ms,
            headers=list(record.headers),
            on_delivery=on_delivery,
        )
    assert producer.flush(DEADLINE_S) == 0
    return [offsets[index] for index in range(len(records))]


def consume_with_confluent(bootstrap: str, topic: str, count: int, *, start: int = 0, **options: Any) -> list[Record]:
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": "unused",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
    }
    consumer = confluent_kafka.Consumer(config | {name.replace("_", "."): value for name, value in options.items()})
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, start)])
        messages = consumer.consume(count, DEADLINE_S)
    finally:
        consumer.close()
    assert [message.error() for message in messages if message.error()] == []
    return [_record_of(message) for message in messages]


def _record_of(message: Any) -> Record:
    headers = tuple((name, value) for name, value in message.headers() or ())
    return Record(message.offset(), message.key(), message.value(), message.timestamp()[1], headers)


def produce_with_kafka_python(bootstrap: str, topic: str, records: list[Record], **options: Any) -> list[int]:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, linger_ms=5, **options)
    try:
        futures = [
            producer.send(
                topic,
                key=record.key,
                value=record.value,
                partition=0,
                timestamp_ms=record.timestamp_ms,
                headers=list(record.headers),
            )
            for record in records
        ]
        return [future.get(DEADLINE_S).offset for future in futures]
    finally:
        producer.close()


def consume_with_kafka_python(
    bootstrap: str, topic: str, count: int, *, start: int = 0, **options: Any
) -> list[Record]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=DEADLINE_S * 1000, **options)
    try:
        partition = kafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, start)
        messages = list(islice(consumer, count))
    finally:
        consumer.close()
    return [Record(m.offset, m.key, m.value, m.timestamp, tuple((n, v) for n, v in m.headers)) for m in messages]
