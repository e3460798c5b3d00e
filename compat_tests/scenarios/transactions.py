"""Shared parts of transaction scenarios: transactional producers, and readers for an isolation level."""

from __future__ import annotations

import time
import uuid
from typing import Any

import confluent_kafka

from compat_tests.scenarios.groups import DEADLINE_S

__all__ = ["TIMEOUT_S", "committed_offset", "read", "transactional_producer"]

TIMEOUT_S = 30.0


def transactional_producer(bootstrap: str, transactional_id: str, **options: Any) -> Any:
    """Returns an initialized transactional producer of confluent-kafka."""
    given = {name.replace("_", "."): value for name, value in options.items()}
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, **given})
    producer.init_transactions(TIMEOUT_S)
    return producer


def read(bootstrap: str, topic: str, partitions: int = 1, *, level: str = "read_committed") -> list[str]:
    """Returns all values that a consumer with the isolation level reads, one partition after the other."""
    consumer: Any = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": level,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(partitions)])
    found: dict[int, list[str]] = {index: [] for index in range(partitions)}
    at_end: set[int] = set()
    deadline = time.monotonic() + DEADLINE_S
    while len(at_end) < partitions:
        assert time.monotonic() < deadline, f"{topic} has no end: {found}"
        message = consumer.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found[message.partition()].append(message.value().decode())
        elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
            at_end.add(message.partition())
        else:
            raise AssertionError(error)
    consumer.close()
    return [value for values in found.values() for value in values]


def committed_offset(bootstrap: str, group: str, topic: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        asked = [confluent_kafka.TopicPartition(topic, 0)]
        offset: int = consumer.committed(asked, timeout=TIMEOUT_S)[0].offset
        return offset
    finally:
        consumer.close()
