"""DescribeLogDirs: what is in the data directories, also of logs that nobody has opened yet."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_log_dirs as messages
from tests.log.batches import make_batch
from tests.server.handlers.harness import HandlerBroker

DESCRIBE_LOG_DIRS = 35


async def ask(broker: HandlerBroker, version: int = 4, **topics: list[int]) -> Any:
    asked = [messages.DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in topics.items()]
    return await broker.ask(DESCRIBE_LOG_DIRS, version, topics=asked or None)


def sizes(result: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in result.topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", range(5))
async def test_a_directory_is_described_with_the_sizes_of_its_logs(broker: HandlerBroker, version: int) -> None:
    await broker.create_topic("orders", 2)
    records = make_batch(b"a", b"b", b"c")
    size = len(records)
    broker.append("orders", records, 1)
    response = await ask(broker, version)
    (result,) = response.results
    assert (response.error_code, result.error_code, result.log_dir) == (0, 0, broker.directory.path)
    assert sizes(result) == {("orders", 0): 0, ("orders", 1): size}
    assert not any(
        partition.offset_lag or partition.is_future_key for topic in result.topics for partition in topic.partitions
    )
    if version >= 4:
        assert 0 <= result.usable_bytes < result.total_bytes


async def test_unknown_partitions_are_ignored(broker: HandlerBroker) -> None:
    await broker.create_topic("orders", 3)
    (result,) = (await ask(broker, orders=[1, 9], nowhere=[0])).results
    assert list(sizes(result)) == [("orders", 1)]
    (result,) = (await ask(broker, orders=[])).results
    assert result.topics == []


async def test_an_unloaded_log_is_measured_and_stays_unloaded(broker: HandlerBroker) -> None:
    await broker.create_topic("orders")
    records = make_batch(b"value")
    size = len(records)
    broker.append("orders", records)
    log = broker.log("orders")
    log.flush(0)
    broker.directory.logs.clear()
    unread = broker.directory.open_log("orders", 0, log.config)
    (result,) = (await ask(broker)).results
    assert sizes(result) == {("orders", 0): size}
    assert unread.opened is None


async def test_an_offline_directory_has_an_error(broker: HandlerBroker) -> None:
    broker.log_dirs.gates[broker.directory.path].is_offline = True
    (result,) = (await ask(broker)).results
    assert (result.error_code, result.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])


async def test_describing_log_dirs_needs_a_permission(broker: HandlerBroker) -> None:
    broker.allow((AclOperation.DESCRIBE, "orders"))
    response = await ask(broker)
    assert (response.error_code, response.results) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
