"""Partitions that come in great numbers: their directories are made in a thread, before the image tells of them."""

from __future__ import annotations

from kbroker.log.directory_metadata import PARTITION_METADATA, encode_partition_metadata
from kbroker.testing.faulty_filesystem import FaultyFileSystem
from tests.replication.moving import PATHS, Broker, topic_of


def directories_of(filesystem: FaultyFileSystem, topic: str) -> dict[str, int]:
    """How many partitions of a topic each data directory has."""
    return {path: sum(name.startswith(f"{topic}-") for name in filesystem.list_directories(path)) for path in PATHS}


async def test_directories_are_there_before_the_topic_and_serve_it_then() -> None:
    filesystem = FaultyFileSystem()
    broker = Broker(filesystem)
    topic = topic_of("wide", 40)
    await broker.table.prepare([topic])
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
    filesystem.room = 0
    await broker.table.prepare([topic])
    filesystem.room = None
    broker.add(topic)
    assert all(broker.table.get("wide", index) is not None for index in range(40))
    assert directories_of(filesystem, "wide") == {"/one": 20, "/two": 20}


async def test_directories_of_a_topic_that_does_not_come_are_taken_over_by_the_next_of_its_name() -> None:
    filesystem = FaultyFileSystem()
    broker = Broker(filesystem)
    await broker.table.prepare([topic_of("wide", 40, number=1)])
    second = topic_of("wide", 40, number=2)
    await broker.table.prepare([second])
    broker.add(second)
    assert directories_of(filesystem, "wide") == {"/one": 20, "/two": 20}
    metadata = filesystem.read(f"{broker.partition('wide', 3).log.path}/{PARTITION_METADATA}")
    assert metadata == encode_partition_metadata(second.id)
