"""Reads topics for tests of pipelines."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Addressed", "read_all"]


class Addressed(Protocol):
    """A broker, or a cluster of brokers."""

    @property
    def bootstrap(self) -> str: ...


def read_all(bootstrap: str, topic: str, count: int) -> list[Any]:
    """Returns all committed records of a topic; there must be `count` of them."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "test",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    partitions = list(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found: list[Any] = []
    ended: set[int] = set()
    while len(ended) < len(partitions):
        message = consumer.poll(30)
        assert message is not None
        if message.error() is not None:
            ended.add(message.partition() or 0)
        else:
            found.append(message)
    consumer.close()
    assert len(found) == count
    return found
