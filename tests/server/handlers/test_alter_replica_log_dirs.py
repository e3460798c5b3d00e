"""AlterReplicaLogDirs: errors, and the description of a moving replica by DescribeLogDirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.controller.changes import PartitionsChanged
from kbroker.controller.image import PartitionState
from kbroker.errors import StorageFailure
from kbroker.log.directory import DataDirectory
from kbroker.log.files.file_cache import FileCache
from kbroker.log.files.filesystem import OsFileSystem
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import alter_replica_log_dirs as messages
from kbroker.replication.storage_gate import StorageGate
from tests.log.batches import make_batch
from tests.server.handlers.harness import HandlerBroker

ALTER_REPLICA_LOG_DIRS, DESCRIBE_LOG_DIRS = 34, 35


async def move(broker: HandlerBroker, path: str, topic: str, *partitions: int, version: int = 2) -> dict[int, int]:
    topics = [messages.AlterReplicaLogDirTopic(name=topic, partitions=list(partitions))]
    asked = [messages.AlterReplicaLogDir(path=path, topics=topics)]
    (result,) = (await broker.ask(ALTER_REPLICA_LOG_DIRS, version, dirs=asked)).results
    assert result.topic_name == topic
    return {partition.partition_index: partition.error_code for partition in result.partitions}


@pytest.fixture
def second(broker: HandlerBroker, tmp_path: Path) -> DataDirectory:
    """Returns a second data directory of the broker."""
    directory = DataDirectory.open(FileCache(OsFileSystem()), str(tmp_path / "second"), broker_id=1)
    log_dirs = broker.log_dirs
    log_dirs.directories = [*log_dirs.directories, directory]
    log_dirs.gates[directory.path] = StorageGate(directory.path)
    log_dirs._replica_counts[directory] = 0
    return directory


@pytest.mark.parametrize("version", range(3))
async def test_a_replica_moves_to_an_existing_directory(
    broker: HandlerBroker, second: DataDirectory, version: int
) -> None:
    await broker.create_topic("orders", 2)  # one in each
    assert await move(broker, broker.directory.path, "orders", 0, version=version) == {0: 0}
    assert await move(broker, f"{second.path}-none", "orders", 0, version=version) == {0: ErrorCode.LOG_DIR_NOT_FOUND}
    assert list(broker.moves) == []
    assert await move(broker, second.path, "orders", 0, 1, version=version) == {0: 0, 1: 0}
    assert [move.key for move in broker.moves] == [("orders", 0)]


async def test_a_moving_replica_is_described_in_both_directories(broker: HandlerBroker, second: DataDirectory) -> None:
    await broker.create_topic("orders")
    broker.append("orders", make_batch(b"a", b"b", b"c"))
    await move(broker, second.path, "orders", 0)
    response = await broker.ask(DESCRIBE_LOG_DIRS, 4, topics=None)
    told = {
        result.log_dir: [
            (partition.partition_size > 0, partition.offset_lag, partition.is_future_key)
            for partition in topic.partitions
        ]
        for result in response.results
        for topic in result.topics
    }
    assert told == {broker.directory.path: [(True, 0, False)], second.path: [(False, 3, True)]}


async def test_an_unknown_partition_is_refused_and_its_directory_remembered(
    broker: HandlerBroker, second: DataDirectory
) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await move(broker, second.path, "orders", 0, 1) == {0: unknown, 1: unknown}
    await broker.create_topic("orders", 2)
    places = [broker.log_dirs.directory_of(partition) for partition in broker.partitions]
    assert places == [second, second]


async def test_a_replica_of_another_broker_is_not_available(broker: HandlerBroker, second: DataDirectory) -> None:
    await broker.create_topic("orders")
    elsewhere = PartitionsChanged("orders", {1: PartitionState(2, 0, (2,), (2,), 0)})
    broker.controller.store.commit([elsewhere])
    assert await move(broker, second.path, "orders", 1) == {1: ErrorCode.REPLICA_NOT_AVAILABLE}


async def test_replicas_do_not_move_from_or_to_offline_directories(
    broker: HandlerBroker, second: DataDirectory
) -> None:
    await broker.create_topic("orders")
    gates = broker.log_dirs.gates
    gates[second.path].close(StorageFailure("broken"))
    assert await move(broker, second.path, "orders", 0) == {0: ErrorCode.KAFKA_STORAGE_ERROR}
    gates[second.path].is_offline = False
    gates[broker.directory.path].close(StorageFailure("broken"))
    assert await move(broker, second.path, "orders", 0) == {0: ErrorCode.KAFKA_STORAGE_ERROR}


async def test_moving_a_replica_needs_a_permission(broker: HandlerBroker, second: DataDirectory) -> None:
    await broker.create_topic("orders")
    broker.allow((AclOperation.DESCRIBE, "kafka-cluster"))
    refused = {0: ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    assert await move(broker, second.path, "orders", 0) == refused
    broker.allow((AclOperation.ALTER, "kafka-cluster"))
    assert await move(broker, second.path, "orders", 0) == {0: 0}
