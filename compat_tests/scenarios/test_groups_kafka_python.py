"""Consumer groups with kafka-python."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import kafka
from kafka.structs import OffsetAndMetadata, TopicPartition

from compat_tests.scenarios.groups import DEADLINE_S, create_topic, produce_numbers

# A poll that ends between JoinGroup and SyncGroup abandons the join. If two consumers are polled in turn for less than
# a heartbeat interval, this may happen to one of them in every generation.
POLL_MS = 500


@contextmanager
def member(bootstrap: str, group: str, topic: str, **options: Any) -> Iterator[Any]:
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": 6000,
        "heartbeat_interval_ms": 300,
        # A leader that assigns before it knows the topic gives no partitions to any member until its next metadata.
        "metadata_max_age_ms": 500,
    }
    consumer = kafka.KafkaConsumer(topic, **(settings | options))
    try:
        yield consumer
    finally:
        consumer.close()


def poll_until(consumers: list[Any], is_done: Callable[[], bool]) -> list[int]:
    """Returns the records read until then."""
    deadline = time.monotonic() + DEADLINE_S
    seen: list[int] = []
    while not is_done():
        assert time.monotonic() < deadline, [consumer.assignment() for consumer in consumers]
        for consumer in consumers:
            for records in consumer.poll(POLL_MS).values():
                seen += [int(record.value) for record in records]
    return seen


def test_two_members_share_and_one_takes_over(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 4)
    with member(bootstrap, topic, topic) as stays:
        poll_until([stays], lambda: len(stays.assignment()) == 4)
        with member(bootstrap, topic, topic) as goes:
            poll_until([stays, goes], lambda: len(stays.assignment()) == len(goes.assignment()) == 2)
            assert not stays.assignment() & goes.assignment()
        poll_until([stays], lambda: len(stays.assignment()) == 4)


def test_a_group_continues_from_its_committed_offsets(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 1)
    produce_numbers(bootstrap, topic, range(10), 1)
    partition = TopicPartition(topic, 0)
    with member(bootstrap, topic, topic) as first:
        seen = poll_until([first], lambda: first.assignment() != set() and first.position(partition) == 10)
        assert seen == list(range(10))
        first.commit()
        assert first.committed(partition) == 10
    produce_numbers(bootstrap, topic, range(10, 15), 1)
    with member(bootstrap, topic, topic) as second:
        seen = poll_until([second], lambda: second.assignment() != set() and second.position(partition) == 15)
    assert seen == list(range(10, 15))


def test_offsets_are_kept_for_consumers_that_assign_themselves(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 1)
    partition = TopicPartition(topic, 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=topic, enable_auto_commit=False)
    consumer.assign([partition])
    assert consumer.committed(partition) is None
    consumer.commit({partition: OffsetAndMetadata(5, "note", -1)})
    assert consumer.committed(partition, metadata=True)[:2] == (5, "note")
    consumer.close()
