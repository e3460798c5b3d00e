"""DeleteRecords: the log start offset advances at once, but never past the high watermark."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.errors import StorageFailure
from kbroker.names import CONSUMER_OFFSETS
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import delete_records as messages
from tests.log.batches import make_batch
from tests.server.handlers.harness import HandlerBroker

DELETE_RECORDS = 21


async def delete(broker: HandlerBroker, name: str, *wanted: tuple[int, int], version: int = 2) -> list[Any]:
    topic = messages.DeleteRecordsTopic(
        name=name,
        partitions=[messages.DeleteRecordsPartition(partition_index=index, offset=offset) for index, offset in wanted],
    )
    response = await broker.ask(DELETE_RECORDS, version, topics=[topic], timeout_ms=1000)
    (result,) = response.topics
    assert result.name == name
    return [
        (partition.partition_index, partition.low_watermark, partition.error_code) for partition in result.partitions
    ]


async def test_the_log_start_offset_advances_in_every_version(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    broker.append("a", make_batch(b"0", b"1", b"2", b"3"))
    for version in range(3):
        assert await delete(broker, "a", (0, version + 1), version=version) == [(0, version + 1, 0)]
        assert broker.log("a").log_start_offset == version + 1


async def test_minus_one_means_the_high_watermark(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    broker.append("a", make_batch(b"0", b"1"))
    assert await delete(broker, "a", (0, -1)) == [(0, 2, 0)]
    broker.append("a", make_batch(b"2"))
    assert broker.log("a").log_start_offset == 2


async def test_an_offset_before_the_start_changes_nothing(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    broker.append("a", make_batch(b"0", b"1"))
    await delete(broker, "a", (0, 2))
    assert await delete(broker, "a", (0, 1)) == [(0, 2, 0)]


@pytest.mark.parametrize("offset", [2, -2])
async def test_an_offset_out_of_range_is_refused(broker: HandlerBroker, offset: int) -> None:
    await broker.create_topic("a")
    broker.append("a", make_batch(b"0"))
    assert await delete(broker, "a", (0, offset)) == [(0, -1, ErrorCode.OFFSET_OUT_OF_RANGE)]
    assert broker.log("a").log_start_offset == 0


async def test_a_topic_that_is_only_compacted_is_refused(broker: HandlerBroker) -> None:
    await broker.create_topic("a", configs={"cleanup.policy": "compact"})
    await broker.create_topic("b", configs={"cleanup.policy": "compact,delete"})
    assert await delete(broker, "a", (0, 0)) == [(0, -1, ErrorCode.POLICY_VIOLATION)]
    assert await delete(broker, "b", (0, 0)) == [(0, 0, 0)]


async def test_unknown_and_internal_topics_are_refused(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    await broker.create_topic(CONSUMER_OFFSETS)
    assert await delete(broker, "a", (1, 0), (-1, 0)) == [
        (1, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (-1, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert await delete(broker, "absent", (0, 0)) == [(0, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert await delete(broker, CONSUMER_OFFSETS, (0, 0)) == [(0, -1, ErrorCode.INVALID_TOPIC_EXCEPTION)]


async def test_deletion_needs_a_permission(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    broker.allow((AclOperation.DESCRIBE, "a"))
    assert await delete(broker, "a", (0, 0)) == [(0, -1, ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
    broker.allow((AclOperation.DELETE, "a"))
    assert await delete(broker, "a", (0, 0)) == [(0, 0, 0)]


async def test_a_storage_failure_is_reported(broker: HandlerBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(log: object, offset: int) -> int:
        raise StorageFailure("broken")

    await broker.create_topic("a")
    monkeypatch.setattr(type(broker.log("a")), "delete_records_before", fail)
    assert await delete(broker, "a", (0, 0)) == [(0, -1, ErrorCode.KAFKA_STORAGE_ERROR)]
