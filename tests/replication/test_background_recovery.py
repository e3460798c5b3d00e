"""Recovery of a log that is found damaged at its first use, after the start; failures and changes during recovery."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kbroker.controller.image import NO_LEADER, PartitionState, TopicImage
from kbroker.errors import Refusal, StorageFailure
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.background_recovery import recover_unsound
from kbroker.testing.faulty_filesystem import FaultyFileSystem
from tests.log.batches import NOW, make_batch
from tests.replication.moving import Broker, topic_of

TOPICS = (topic_of("orders"), topic_of("paid", number=8))


def torn(filesystem: FaultyFileSystem) -> Broker:
    """Broker with a log that lost its last byte after a clean shutdown, and an intact one."""
    broker = Broker(filesystem, *TOPICS, paths=("/one",))
    broker.write(b"first", b"second")
    broker.write(b"sound", topic="paid")
    broker.replicas.close()
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
    assert await broker.replicas.recover() == []
    await recover_unsound(broker.replicas, metadata.bump)
    assert metadata.bumped == []  # the log was not used
    assert produce(broker) == ErrorCode.KAFKA_STORAGE_ERROR
    broker.write(b"more", topic="paid")
    await recover_unsound(broker.replicas, metadata.bump)
    assert metadata.bumped == [("orders", 0)]
    assert produce(broker) == ErrorCode.NONE
    assert broker.values() == [b"first", b"x"]
    await recover_unsound(broker.replicas, metadata.bump)
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
    await recover_unsound(broker.replicas, metadata.bump)
    assert produce(broker) == ErrorCode.KAFKA_STORAGE_ERROR
    assert filesystem.read(path) == before
    metadata.failure = None
    await broker.log_dirs.reopen_full()
    produce(broker)
    await recover_unsound(broker.replicas, metadata.bump)
    assert produce(broker) == ErrorCode.NONE


async def test_it_may_be_deleted_while_its_epoch_is_bumped(
    filesystem: FaultyFileSystem, broker: Broker, metadata: Metadata
) -> None:
    produce(broker)
    open_files = filesystem.open_files

    async def bump(partitions: Sequence[tuple[str, int]]) -> None:
        await metadata.bump(partitions)
        broker.remove(TOPICS[0])

    await recover_unsound(broker.replicas, bump)
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
    filesystem.free_bytes = 0
    assert ("orders", 0) not in await broker.replicas.recover()
    filesystem.free_bytes = None
    await broker.log_dirs.reopen_full()
    assert produce(broker) == ErrorCode.KAFKA_STORAGE_ERROR
    await recover_unsound(broker.replicas, metadata.bump)
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
    filesystem.free_bytes = 0
    assert await broker.replicas.recover() == []
    filesystem.free_bytes = None
    await broker.log_dirs.reopen_full()
    produce(broker)
    await recover_unsound(broker.replicas, metadata.bump)
    assert broker.partition().high_watermark == 2
    filesystem.crash()
    again = Broker(filesystem, topic, paths=("/one",))
    await again.replicas.recover()
    assert again.values() == [b"first", b"second"]


# Where there are other replicas, or a broker joins others


def topic_with(leader: int, leader_epoch: int, *replicas: int) -> TopicImage:
    return TopicImage(
        "orders", b"7" * 16, (PartitionState(leader, leader_epoch, replicas, replicas, leader_epoch),), {}
    )


def republishing(broker: Broker, topic: TopicImage) -> list[tuple[str, int]]:
    """Makes `republish` report the topic again. Returns the list of its calls."""
    calls: list[tuple[str, int]] = []

    def republish(name: str, index: int) -> None:
        calls.append((name, index))
        broker.change(topic)

    broker.replicas.republish = republish
    return calls


async def test_a_replica_among_others_is_recovered_without_a_bump_and_takes_its_role_then(
    filesystem: FaultyFileSystem, metadata: Metadata
) -> None:
    Broker(filesystem, topic_with(1, 0, 1), paths=("/one",)).write(b"first")
    filesystem.kill()
    broker = Broker(filesystem, paths=("/one",))
    assert await broker.replicas.recover() == []
    topic = topic_with(1, 1, 1, 2)
    broker.add(topic)  # named only now
    calls = republishing(broker, topic)
    partition = broker.table.replica("orders", 0)
    assert partition is not None
    assert broker.table.get("orders", 0) is None
    assert partition.log_handle.opened is None
    await recover_unsound(broker.replicas, metadata.bump)
    assert broker.table.get("orders", 0) is partition
    assert calls == [("orders", 0)]
    assert broker.values() == [b"first"]
    await recover_unsound(broker.replicas, metadata.bump)
    assert (calls, metadata.bumped) == ([("orders", 0)], [])


async def test_a_role_that_waits_may_change_before_it_is_taken(
    filesystem: FaultyFileSystem, metadata: Metadata
) -> None:
    Broker(filesystem, topic_with(1, 0, 1), paths=("/one",)).write(b"first")
    filesystem.kill()
    broker = Broker(filesystem, paths=("/one",))
    await broker.replicas.recover()
    broker.add(topic_with(1, 1, 1, 2))
    follower = topic_with(2, 2, 1, 2)
    broker.change(follower)
    republishing(broker, follower)
    await recover_unsound(broker.replicas, metadata.bump)
    partition = broker.table.replica("orders", 0)
    assert partition is not None
    assert broker.table.get("orders", 0) is None
    assert (partition.leader_id, partition.leader_epoch, partition.log.log_end_offset) == (2, 2, 1)


@pytest.mark.parametrize("replicas", [(1,), (1, 2)])
async def test_after_a_crash_nothing_is_led_in_the_epoch_that_was_known_at_the_start(
    filesystem: FaultyFileSystem, metadata: Metadata, replicas: tuple[int, ...]
) -> None:
    Broker(filesystem, topic_with(1, 4, 1), paths=("/one",)).write(b"first")
    filesystem.kill()
    broker = Broker(filesystem, topic_with(NO_LEADER, 4, *replicas), paths=("/one",))
    assert await broker.replicas.recover() == []
    same, later = topic_with(1, 4, *replicas), topic_with(1, 5, *replicas)
    republishing(broker, same)
    broker.change(same)
    assert broker.table.get("orders", 0) is None
    await recover_unsound(broker.replicas, metadata.bump)
    assert metadata.bumped == [("orders", 0)]
    assert broker.table.get("orders", 0) is None
    broker.change(later)
    assert broker.table.get("orders", 0) is not None
    assert broker.values() == [b"first"]


async def test_what_a_full_disk_did_not_let_in_is_told_of_when_it_is_there(filesystem: FaultyFileSystem) -> None:
    broker = Broker(filesystem, paths=("/one",))
    await broker.replicas.recover()
    topic = topic_with(2, 0, 1, 2)
    calls = republishing(broker, topic)
    filesystem.free_bytes = 0
    broker.add(topic)
    broker.replicas.open_missing()
    assert broker.table.replica("orders", 0) is None
    filesystem.free_bytes = None
    broker.replicas.open_missing()
    assert broker.table.replica("orders", 0) is not None
    broker.replicas.open_missing()
    assert calls == [("orders", 0)]
