"""A log that is found damaged at its first use, long after the start: who uses it meanwhile, and what may go wrong."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kbroker.errors import Refusal, StorageFailure
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.late_recovery import recover_unsound
from kbroker.testing.faulty_filesystem import FaultyFileSystem
from tests.log.batches import NOW, make_batch
from tests.replication.moving import Broker, topic_of

TOPICS = (topic_of("orders"), topic_of("paid", number=8))


def torn(filesystem: FaultyFileSystem) -> Broker:
    """Started over a log that lost its last byte after a clean stop, and another that is sound."""
    broker = Broker(filesystem, *TOPICS, paths=("/one",))
    broker.write(b"first", b"second")
    broker.write(b"sound", topic="paid")
    broker.table.close()
    path = f"/one/orders-0/{0:020d}.log"
    filesystem.replace(path, filesystem.read(path)[:-1])
    return Broker(filesystem, *TOPICS, paths=("/one",))


def produce(broker: Broker) -> ErrorCode:
    return ErrorCode(broker.partition().append_internal(make_batch(b"x"), NOW).error)


class Metadata:
    def __init__(self) -> None:
        self.bumped: list[tuple[str, int]] = []
        self.failure: Exception | None = None

    async def bump(self, partitions: Sequence[tuple[str, int]]) -> None:
        if self.failure is not None:
            raise self.failure
        self.bumped.extend(partitions)


@pytest.fixture
def filesystem() -> FaultyFileSystem:
    return FaultyFileSystem()


@pytest.fixture
def broker(filesystem: FaultyFileSystem) -> Broker:
    return torn(filesystem)


@pytest.fixture
def metadata() -> Metadata:
    return Metadata()


async def test_it_takes_nothing_until_it_has_a_new_epoch_and_others_notice_nothing(
    broker: Broker, metadata: Metadata
) -> None:
    assert await broker.table.recover() == []
    await recover_unsound(broker.table, metadata.bump)
    assert metadata.bumped == []  # nobody has used it
    assert produce(broker) == ErrorCode.KAFKA_STORAGE_ERROR
    broker.write(b"more", topic="paid")
    await recover_unsound(broker.table, metadata.bump)
    assert metadata.bumped == [("orders", 0)]
    assert produce(broker) == ErrorCode.NONE
    assert broker.values() == [b"first", b"x"]
    await recover_unsound(broker.table, metadata.bump)
    assert metadata.bumped == [("orders", 0)]


@pytest.mark.parametrize(
    "failure", [Refusal(ErrorCode.NOT_CONTROLLER, "not here"), StorageFailure("no room", is_full=True)]
)
async def test_without_a_new_epoch_it_stays_as_it_is_and_is_tried_again(
    filesystem: FaultyFileSystem, broker: Broker, metadata: Metadata, failure: Exception
) -> None:
    path = f"/one/orders-0/{0:020d}.log"
    before = filesystem.read(path)
    metadata.failure = failure
    produce(broker)
    await recover_unsound(broker.table, metadata.bump)
    assert produce(broker) == ErrorCode.KAFKA_STORAGE_ERROR
    assert filesystem.read(path) == before
    metadata.failure = None
    broker.table.gates["/one"].tick()
    produce(broker)
    await recover_unsound(broker.table, metadata.bump)
    assert produce(broker) == ErrorCode.NONE


async def test_it_may_be_deleted_while_its_epoch_is_bumped(
    filesystem: FaultyFileSystem, broker: Broker, metadata: Metadata
) -> None:
    produce(broker)
    open_files = filesystem.open_files

    async def bump(partitions: Sequence[tuple[str, int]]) -> None:
        await metadata.bump(partitions)
        broker.remove(TOPICS[0])

    await recover_unsound(broker.table, bump)
    assert broker.table.get("orders", 0) is None
    assert filesystem.open_files == open_files


async def test_what_a_full_disk_kept_from_being_recovered_at_the_start_is_recovered_later(metadata: Metadata) -> None:
    filesystem = FaultyFileSystem()
    first = Broker(filesystem, *TOPICS, paths=("/one",))
    first.write(b"first")
    first.partition().log.roll(NOW)  # so that recovery has an index to write
    first.write(b"second")
    filesystem.kill()
    broker = Broker(filesystem, *TOPICS, paths=("/one",))
    filesystem.room = 0
    assert ("orders", 0) not in await broker.table.recover()
    filesystem.room = None
    broker.table.gates["/one"].tick()
    assert produce(broker) == ErrorCode.KAFKA_STORAGE_ERROR
    await recover_unsound(broker.table, metadata.bump)
    assert metadata.bumped == [("orders", 0)]
    assert produce(broker) == ErrorCode.NONE
    assert broker.values() == [b"first", b"second", b"x"]


async def test_a_durable_log_is_fsynced_before_it_is_shown(metadata: Metadata) -> None:
    filesystem = FaultyFileSystem()
    topic = topic_of("orders", configs={"flush.messages": "1"})
    first = Broker(filesystem, topic, paths=("/one",))
    first.write(b"first")
    first.partition().log.roll(NOW)
    first.write(b"second")
    filesystem.kill()
    broker = Broker(filesystem, topic, paths=("/one",))
    filesystem.room = 0
    assert await broker.table.recover() == []
    filesystem.room = None
    broker.table.gates["/one"].tick()
    produce(broker)
    await recover_unsound(broker.table, metadata.bump)
    assert broker.partition().high_watermark == 2
    filesystem.crash()
    again = Broker(filesystem, topic, paths=("/one",))
    await again.table.recover()
    assert again.values() == [b"first", b"second"]
