"""A mirror with its groups, and an audit of it, between kbroker and Apache Kafka, each as source and as target."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from compat_tests.scenarios.groups import DEADLINE_S, create_topic

PARTITIONS = 2
RECORDS = 40
READ_BY_GROUP = 15
# Recent, so that retention does not delete the records; old enough for the audit to judge them.
FIRST_MS = int(time.time() - 7200) // 60 * 60_000


def write(bootstrap: str, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce(
            topic,
            str(number).encode(),
            f"key {number}".encode() if number % 3 else None,
            partition=number % PARTITIONS,
            timestamp=FIRST_MS + number,
            headers=[("number", str(number).encode())],
        )
    assert producer.flush(DEADLINE_S) == 0


def read(bootstrap: str, topic: str) -> list[Any]:
    """Returns partition, key, value, timestamp and first header of all committed records, in order."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"{topic}-reader", "isolation.level": "read_committed"}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
        messages = consumer.consume(RECORDS, DEADLINE_S)
        assert consumer.consume(1, 0.5) == []
    finally:
        consumer.close()
    rows = [
        (message.partition(), message.key(), message.value(), message.timestamp(), list(message.headers() or [])[:1])
        for message in messages
    ]
    return sorted(rows, key=lambda row: (row[0], row[3]))


def commit_by_group(bootstrap: str, topic: str, offsets: list[int]) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": f"{topic}-group"})
    try:
        positions = [confluent_kafka.TopicPartition(topic, index, offset) for index, offset in enumerate(offsets)]
        consumer.commit(offsets=positions, asynchronous=False)
    finally:
        consumer.close()


def unread_by_group(bootstrap: str, topic: str) -> list[int]:
    """Returns the records after the offsets that the group has committed."""
    config = {"bootstrap.servers": bootstrap, "group.id": f"{topic}-group", "auto.offset.reset": "error"}
    consumer = confluent_kafka.Consumer({**config, "enable.auto.commit": False})
    try:
        consumer.subscribe([topic])
        messages = consumer.consume(RECORDS - READ_BY_GROUP, DEADLINE_S)
    finally:
        consumer.close()
    assert [message.error() for message in messages if message.error()] == []
    return sorted(int(message.value() or b"") for message in messages)


@pytest.mark.parametrize("is_to_apache", [True, False], ids=["to-apache-kafka", "from-apache-kafka"])
def test_a_mirror_and_its_audit_run_between_kbroker_and_apache_kafka(
    kbroker_address: str, apache_kafka: str, topic: str, spark_session: Any, tmp_path: Path, is_to_apache: bool
) -> None:
    from kbroker.pipeline import audit, mirror
    from kbroker.pipeline.audit_file import Hop
    from kbroker.pipeline.definition import AVAILABLE_NOW, TopicsToRead
    from kbroker.pipeline.mirror_file import GroupsToMove

    source, target = (kbroker_address, apache_kafka) if is_to_apache else (apache_kafka, kbroker_address)
    create_topic(source, topic, PARTITIONS)
    write(source, topic)
    commit_by_group(source, topic, [8, 7])
    mirror(
        spark_session,
        bootstrap=source,
        to=target,
        topics=[topic],
        groups=GroupsToMove(f"{topic}-group"),
        checkpoint=str(tmp_path / "state" / "mirror"),
        name=topic,
        trigger=AVAILABLE_NOW,
    ).wait()
    assert read(target, topic) == read(source, topic)
    assert unread_by_group(target, topic) == [number for number in range(RECORDS) if number // 2 >= 8 - number % 2]
    hops = [
        Hop("source", TopicsToRead(source, (topic,)), "producer"),
        Hop("mirror", TopicsToRead(target, (topic,)), "source", copies_only=True),
    ]
    audit(
        spark_session,
        bootstrap=target,
        topic=f"{topic}-audit",
        hops=hops,
        checkpoint=str(tmp_path / "state" / "audit"),
        report=str(tmp_path),
        name=f"{topic}-audit",
        trigger=AVAILABLE_NOW,
    ).wait()
    (line,) = (tmp_path / "report.txt").read_text().splitlines()[1:]
    assert line.split()[-4:] == ["-", str(RECORDS), str(RECORDS), "ok"]
