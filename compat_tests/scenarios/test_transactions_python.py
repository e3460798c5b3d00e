"""Transactions of kafka-python and aiokafka, and the admin requests for transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiokafka
import kafka
import pytest
from kafka import admin as kafka_admin
from kafka.structs import OffsetAndMetadata, TopicPartition

from compat_tests.scenarios.groups import create_topic, produce_numbers
from compat_tests.scenarios.transactions import committed_offset, read

python: Any = kafka_admin

TIMEOUT_MS = 60_000


@contextmanager
def transactional(bootstrap: str, transactional_id: str) -> Iterator[Any]:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS
    )
    try:
        producer.init_transactions()
        yield producer
    finally:
        producer.close(timeout=1)


def test_kafka_python_commits_and_aborts(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 1)
    with transactional(bootstrap, topic) as producer:
        for number, is_commit in enumerate((True, False, True)):
            producer.begin_transaction()
            producer.send(topic, str(number).encode()).get(30)
            if is_commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    assert read(bootstrap, topic) == ["0", "2"]


def test_kafka_python_commits_offsets_with_its_records(bootstrap: str, topic: str) -> None:
    target = f"{topic}-out"
    create_topic(bootstrap, topic, 1)
    create_topic(bootstrap, target, 1)
    produce_numbers(bootstrap, topic, range(3), 1)
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False
    )
    values: list[bytes] = []
    while len(values) < 3:
        for records in consumer.poll(500).values():
            values += [record.value for record in records]
    with transactional(bootstrap, topic) as producer:
        producer.begin_transaction()
        for value in values:
            producer.send(target, value)
        offsets = {TopicPartition(topic, 0): OffsetAndMetadata(3, "", -1)}
        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        producer.commit_transaction()
    consumer.close()
    assert read(bootstrap, target) == ["0", "1", "2"]
    assert committed_offset(bootstrap, topic, topic) == 3


def test_kafka_python_lists_open_and_aborts_hanging_transactions(bootstrap: str, topic: str, python_admin: Any) -> None:
    create_topic(bootstrap, topic, 1)
    with transactional(bootstrap, topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"open").get(30)
        described = python_admin.describe_transactions([topic])[topic]
        assert (described.state.value, described.transaction_timeout_ms) == ("Ongoing", TIMEOUT_MS)
        listed = [
            transaction
            for transaction in flat(python_admin.list_transactions())
            if transaction.transactional_id == topic
        ]
        assert [row.producer_id for row in listed] == [described.producer_id]
        hanging = python_admin.find_hanging_transactions()
        assert topic not in [row["transactional_id"] for row in hanging], "it is young"
        spec = python.AbortTransactionSpec(TopicPartition(topic, 0), described.producer_id, described.producer_epoch)
        python_admin.abort_transaction(spec)
        assert read(bootstrap, topic) == []
        producer.abort_transaction()


def flat(listed: Any) -> list[Any]:
    return (
        [transaction for some in listed.values() for transaction in some] if isinstance(listed, dict) else list(listed)
    )


@pytest.mark.parametrize("is_commit", [True, False])
def test_aiokafka_commits_and_aborts(bootstrap: str, topic: str, is_commit: bool) -> None:
    create_topic(bootstrap, topic, 1)

    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic)
        await producer.start()
        try:
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"first")
            if is_commit:
                offsets = {aiokafka.TopicPartition(topic, 0): 1}
                await producer.send_offsets_to_transaction(offsets, topic)
                await producer.commit_transaction()
            else:
                await producer.abort_transaction()
        finally:
            await producer.stop()

    asyncio.run(run())
    assert read(bootstrap, topic) == (["first"] if is_commit else [])
    if is_commit:
        assert committed_offset(bootstrap, topic, topic) == 1
