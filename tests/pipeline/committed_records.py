"""Reads a topic as a consumer with isolation.level=read_committed sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

__all__ = ["read_committed", "values_of"]


def read_committed(
    bootstrap: str,
    topic: str,
    *,
    partitions: int,
    isolation: str = "read_committed",
    security: Mapping[str, str] | None = None,
) -> list[Any]:
    """Returns all messages up to the last stable offset of each partition. `security`: settings of librdkafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "test",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            **(security or {}),
        }
    )
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        found: list[Any] = []
        ended: set[int | None] = set()
        while len(ended) < partitions:
            message = consumer.poll(60)
            assert message is not None, "the topic does not end"
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
        return found
    finally:
        consumer.close()


def values_of(bootstrap: str, topic: str, *, partitions: int) -> list[str]:
    return sorted(message.value().decode() for message in read_committed(bootstrap, topic, partitions=partitions))
