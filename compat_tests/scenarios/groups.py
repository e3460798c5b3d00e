"""Groups of real consumers: topics with numbers, members that are polled together, and the numbers they read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

__all__ = ["DEADLINE_S", "Member", "create_topic", "poll_until", "produce_numbers", "same_split"]

DEADLINE_S = 40.0
SESSION_TIMEOUT_MS = 6000


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(DEADLINE_S)


def produce_numbers(bootstrap: str, topic: str, numbers: Iterable[int], partitions: int) -> None:
    """Produces each number as a value, to the partition `number % partitions`."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        producer.produce(topic, str(number).encode(), partition=number % partitions)
    assert producer.flush(DEADLINE_S) == 0


class Member:
    """Group member of confluent-kafka; `seen` has the numbers that it read."""

    def __init__(self, bootstrap: str, group: str, topic: str, **options: Any) -> None:
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": 300,
        }
        given = {name.replace("_", "."): value for name, value in options.items()}
        self.consumer = confluent_kafka.Consumer(config | given)
        self.seen: list[int] = []
        self.rebalances = 0
        self.consumer.subscribe([topic], on_assign=self._on_assign)

    def _on_assign(self, consumer: Any, partitions: Any) -> None:
        self.rebalances += 1

    def poll(self) -> None:
        for message in self.consumer.consume(500, 0.05):
            assert message.error() is None, message.error()
            self.seen.append(int(message.value() or b"-1"))

    @property
    def partitions(self) -> list[int]:
        return sorted(partition.partition for partition in self.consumer.assignment())

    def committed(self, topic: str, partitions: int) -> list[int]:
        asked = [confluent_kafka.TopicPartition(topic, index) for index in range(partitions)]
        return [partition.offset for partition in self.consumer.committed(asked, timeout=DEADLINE_S)]

    def close(self) -> None:
        self.consumer.close()


def poll_until(members: Iterable[Member], is_done: Callable[[], bool], condition: str) -> None:
    """Polls the members until the condition holds: real consumers have no mock clock."""
    deadline = time.monotonic() + DEADLINE_S
    members = list(members)
    while not is_done():
        assert time.monotonic() < deadline, f"not reached: {condition}; {[member.partitions for member in members]}"
        for member in members:
            member.poll()


def same_split(members: Iterable[Member], sizes: list[int], partitions: int) -> bool:
    """Whether each partition has one owner and the members have the given numbers of partitions."""
    owned = [member.partitions for member in members]
    everything = sorted(index for indexes in owned for index in indexes)
    return everything == list(range(partitions)) and sorted(map(len, owned)) == sorted(sizes)
