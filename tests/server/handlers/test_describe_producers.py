"""DescribeProducers: the producers that a partition knows."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.errors import StorageFailure
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_producers as messages
from tests.log.batches import NOW, make_batch
from tests.server.handlers.harness import HandlerBroker

DESCRIBE_PRODUCERS = 61


async def ask(broker: HandlerBroker, name: str, index: int = 0) -> Any:
    topic = messages.TopicRequest(name=name, partition_indexes=[index])
    response = await broker.ask(DESCRIBE_PRODUCERS, 0, topics=[topic])
    (answer,) = response.topics
    (partition,) = answer.partitions
    assert (answer.name, partition.partition_index) == (name, index)
    return partition


async def test_idempotent_and_transactional_producers_are_described(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    broker.append("a", make_batch(b"0", b"1", producer_id=5, epoch=2, timestamp=NOW - 9))
    broker.append("a", make_batch(b"2", producer_id=6, transactional=True))
    broker.append("a", make_batch(b"3"))
    answer = await ask(broker, "a")
    told = {
        producer.producer_id: (
            producer.producer_epoch,
            producer.last_sequence,
            producer.last_timestamp,
            producer.coordinator_epoch,
            producer.current_txn_start_offset,
        )
        for producer in answer.active_producers
    }
    assert answer.error_code == 0
    assert told == {5: (2, 1, NOW - 9, -1, -1), 6: (0, 0, NOW, -1, 2)}


async def test_unknown_and_invalid_topics_are_reported(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    assert (await ask(broker, "a", 1)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await ask(broker, "absent")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    illegal = await ask(broker, "a/b")
    assert illegal.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "a/b" in illegal.error_message


async def test_describing_producers_needs_the_read_permission(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    broker.allow((AclOperation.DESCRIBE, "a"))
    assert (await ask(broker, "a")).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    broker.allow((AclOperation.READ, "a"))
    assert (await ask(broker, "a")).error_code == 0


async def test_a_storage_failure_is_reported(broker: HandlerBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(log: object) -> None:
        raise StorageFailure("broken")

    await broker.create_topic("a")
    monkeypatch.setattr(PartitionLog, "open", fail)
    assert (await ask(broker, "a")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
