"""Directories of many new partitions are created in a thread, before the image has the partitions."""

from __future__ import annotations

import errno

import pytest

from kbroker.log.files.checkpoint import REPLICATION_CHECKPOINT
from kbroker.log.files.directory_metadata import PARTITION_METADATA, encode_partition_metadata
from kbroker.testing.faulty_filesystem import FaultyFileSystem
from tests.log.batches import NOW, make_batch
from tests.replication.moving import PATHS, Broker, topic_of


def directories_of(filesystem: FaultyFileSystem, topic: str) -> dict[str, int]:
    """Counts the partitions of a topic in each data directory."""
    return {path: sum(name.startswith(f"{topic}-") for name in filesystem.list_directories(path)) for path in PATHS}


async def test_directories_are_there_before_the_topic_and_serve_it_then() -> None:
    filesystem = FaultyFileSystem()
    broker = Broker(filesystem)
    topic = topic_of("wide", 40)
    await broker.replicas.prepare([topic])
    assert directories_of(filesystem, "wide") == {"/one": 20, "/two": 20}
    assert broker.table.get("wide", 0) is None
    broker.add(topic)
    assert directories_of(filesystem, "wide") == {"/one": 20, "/two": 20}
    broker.write(b"first", topic="wide")
    assert broker.values("wide") == [b"first"]
    assert {broker.directory("wide", index) for index in range(40)} == {"/one", "/two"}


async def test_what_could_not_be_prepared_is_made_with_the_topic() -> None:
    filesystem = FaultyFileSystem()
    broker = Broker(filesystem)
    topic = topic_of("wide", 40)
    filesystem.free_bytes = 0
    await broker.replicas.prepare([topic])
    filesystem.free_bytes = None
    broker.add(topic)
    assert all(broker.table.get("wide", index) is not None for index in range(40))
    assert directories_of(filesystem, "wide") == {"/one": 20, "/two": 20}


async def test_directories_of_a_topic_that_does_not_come_are_taken_over_by_the_next_of_its_name() -> None:
    filesystem = FaultyFileSystem()
    broker = Broker(filesystem)
    await broker.replicas.prepare([topic_of("wide", 40, number=1)])
    second = topic_of("wide", 40, number=2)
    await broker.replicas.prepare([second])
    broker.add(second)
    assert directories_of(filesystem, "wide") == {"/one": 20, "/two": 20}
    metadata = filesystem.read(f"{broker.partition('wide', 3).log.path}/{PARTITION_METADATA}")
    assert metadata == encode_partition_metadata(second.id)


@pytest.mark.parametrize("paths", [PATHS, PATHS[:1]])
def test_a_topic_does_not_adopt_the_log_of_a_deleted_topic_of_its_name(paths: tuple[str, ...]) -> None:
    """The topic was deleted and created again while the broker was stopped."""
    filesystem = FaultyFileSystem()
    broker = Broker(filesystem, topic_of("orders", number=1), paths=paths)
    broker.write(b"of the deleted topic")
    broker.replicas.close()
    second = topic_of("orders", number=2)
    broker = Broker(filesystem, second, paths=paths)
    assert broker.values() == []
    broker.write(b"new")
    broker.replicas.close()
    assert Broker(filesystem, second, paths=paths).values() == [b"new"]


class OneBadDisk(FaultyFileSystem):
    """Makes replacing a file under /one fail with the errno."""

    def __init__(self) -> None:
        super().__init__()
        self.refusal: int | None = None

    def replace(self, path: str, content: bytes, *, sync: bool = True) -> None:
        if path.startswith("/one/"):
            self.fail(self.refusal, path)
        super().replace(path, content, sync=sync)


@pytest.mark.parametrize(("refusal", "is_offline"), [(errno.EIO, True), (errno.ENOSPC, False)])
async def test_checkpoints_that_fail_in_one_directory_are_written_in_the_others(refusal: int, is_offline: bool) -> None:
    filesystem = OneBadDisk()
    broker = Broker(filesystem, topic_of("wide", 2))
    for index in range(2):
        broker.partition("wide", index).append_internal(make_batch(b"v"), NOW)
    filesystem.refusal = refusal
    await broker.log_dirs.checkpoint()
    assert broker.log_dirs.gates["/one"].is_offline is is_offline
    assert not filesystem.exists(f"/one/{REPLICATION_CHECKPOINT}")
    assert filesystem.read(f"/two/{REPLICATION_CHECKPOINT}").endswith(b" 1\n")
    assert broker.table.get("wide", 0) is not None
    broker.replicas.retire_offline()
    offline = [index for index in range(2) if broker.log_dirs.is_offline("wide", index)]
    assert len(offline) == is_offline
    assert [index for index in range(2) if broker.table.get("wide", index) is None] == offline
