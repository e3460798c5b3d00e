"""AlterReplicaLogDirs: what is refused, and what DescribeLogDirs says of a replica on its way."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.controller.changes import PartitionsChanged
from kbroker.controller.image import Partition
from kbroker.errors import StorageFailure
from kbroker.log.directory import DataDirectory
from kbroker.log.file_cache import FileCache
from kbroker.log.filesystem import OsFileSystem
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import alter_replica_log_dirs as messages
from kbroker.replication.storage_gate import StorageGate
from kbroker.server.authorization import Operation
from tests.log.batches import make_batch
from tests.server.handlers.harness import HandlerBroker

ALTER_REPLICA_LOG_DIRS, DESCRIBE_LOG_DIRS = 34, 35


async def move(broker: HandlerBroker, path: str, topic: str, *partitions: int, version: int = 2) -> dict[int, int]:
    topics = [messages.AlterReplicaLogDirTopic(name=topic, partitions=list(partitions))]
    asked = [messages.AlterReplicaLogDir(path=path, topics=topics)]
    (result,) = (await broker.ask(ALTER_REPLICA_LOG_DIRS, version, dirs=asked)).results
    assert result.topic_name == topic
    return {each.partition_index: each.error_code for each in result.partitions}


@pytest.fixture
def second(broker: HandlerBroker, tmp_path: Path) -> DataDirectory:
    """Another data directory of the broker."""
    directory = DataDirectory.open(FileCache(OsFileSystem()), str(tmp_path / "second"), broker_id=1)
    table = broker.partitions
    table.directories = [*table.directories, directory]
    table.gates[directory.path] = StorageGate(directory.path)
    table._held[directory] = 0
    return directory


@pytest.mark.parametrize("version", range(3))
async def test_a_replica_moves_to_a_directory_that_there_is(
    broker: HandlerBroker, second: DataDirectory, version: int
) -> None:
    await broker.create_topic("orders", 2)  # one in each
    assert await move(broker, broker.directory.path, "orders", 0, version=version) == {0: 0}
    assert await move(broker, f"{second.path}-none", "orders", 0, version=version) == {0: ErrorCode.LOG_DIR_NOT_FOUND}
    assert list(broker.partitions.moves) == []
    assert await move(broker, second.path, "orders", 0, 1, version=version) == {0: 0, 1: 0}
    assert [each.key for each in broker.partitions.moves] == [("orders", 0)]


async def test_a_replica_on_its_way_is_told_of_in_both_directories(
    broker: HandlerBroker, second: DataDirectory
) -> None:
    await broker.create_topic("orders")
    broker.append("orders", make_batch(b"a", b"b", b"c"))
    await move(broker, second.path, "orders", 0)
    response = await broker.ask(DESCRIBE_LOG_DIRS, 4, topics=None)
    told = {
        result.log_dir: [(each.partition_size > 0, each.offset_lag, each.is_future_key) for each in topic.partitions]
        for result in response.results
        for topic in result.topics
    }
    assert told == {broker.directory.path: [(True, 0, False)], second.path: [(False, 3, True)]}


async def test_what_is_not_here_is_refused_and_the_wish_remembered(
    broker: HandlerBroker, second: DataDirectory
) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await move(broker, second.path, "orders", 0, 1) == {0: unknown, 1: unknown}
    await broker.create_topic("orders", 2)
    places = [broker.partitions.directory_of(each) for each in broker.partitions]
    assert places == [second, second]


async def test_a_replica_of_another_broker_is_not_available(broker: HandlerBroker, second: DataDirectory) -> None:
    await broker.create_topic("orders")
    elsewhere = PartitionsChanged("orders", {1: Partition(2, 0, (2,), (2,), 0)})
    broker.controller.ledger.commit([elsewhere])
    assert await move(broker, second.path, "orders", 1) == {1: ErrorCode.REPLICA_NOT_AVAILABLE}


async def test_directories_that_are_offline_take_and_give_nothing(broker: HandlerBroker, second: DataDirectory) -> None:
    await broker.create_topic("orders")
    gates = broker.partitions.gates
    gates[second.path].close(StorageFailure("broken"))
    assert await move(broker, second.path, "orders", 0) == {0: ErrorCode.KAFKA_STORAGE_ERROR}
    gates[second.path].is_offline = False
    gates[broker.directory.path].close(StorageFailure("broken"))
    assert await move(broker, second.path, "orders", 0) == {0: ErrorCode.KAFKA_STORAGE_ERROR}


async def test_who_may_not_alter_the_cluster_moves_nothing(broker: HandlerBroker, second: DataDirectory) -> None:
    await broker.create_topic("orders")
    broker.allow((Operation.DESCRIBE, "kafka-cluster"))
    refused = {0: ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    assert await move(broker, second.path, "orders", 0) == refused
    broker.allow((Operation.ALTER, "kafka-cluster"))
    assert await move(broker, second.path, "orders", 0) == {0: 0}
