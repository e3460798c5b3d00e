"""Several data directories, and one that is broken: its partitions are out of reach, the others are served."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from kbroker.config.broker import BrokerConfig
from kbroker.errors import UserError
from kbroker.log.files.filesystem import storage_failure
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import alter_replica_log_dirs as move_messages
from kbroker.protocol.messages import describe_topic_partitions
from kbroker.server.broker import run_broker
from tests.broker.batches import make_batch
from tests.broker.failing_disk import FailingDisk
from tests.broker.wire import Client, connect

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR


class PartlyFailingDisk(FailingDisk):
    """Files under `broken` cannot be written."""

    broken: Path | None = None

    def refuse_write(self, path: str) -> None:
        if self.broken is not None and Path(path).is_relative_to(self.broken):
            raise storage_failure(OSError(errno.EIO, os.strerror(errno.EIO)), path)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> PartlyFailingDisk:
    disk = PartlyFailingDisk()
    monkeypatch.setattr("kbroker.server.broker.OsFileSystem", lambda: disk)
    return disk


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "one", tmp_path / "two"


@asynccontextmanager
async def serving(*paths: Path) -> AsyncIterator[Client]:
    config = BrokerConfig.from_properties(
        {"log.dirs": ",".join(map(str, paths)), "listeners": "PLAINTEXT://127.0.0.1:0", "broker.id": "1"}
    )
    stop, ready = trio.Event(), trio.Event()
    ports: list[int] = []

    def on_ready(addresses: list[tuple[str, int]]) -> None:
        ports.append(addresses[0][1])
        ready.set()

    async def run() -> None:
        await run_broker(config, on_ready=on_ready, stop=stop)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await ready.wait()
        try:
            async with connect(ports[0]) as client:
                yield client
        finally:
            stop.set()


async def fill(paths: tuple[Path, Path]) -> tuple[int, int]:
    """Creates a topic with a partition in each directory. Returns the directories of the partitions."""
    async with serving(*paths) as client:
        await client.create_topic("t", 2)
        for partition in range(2):
            assert (await client.produce("t", make_batch(b"first"), partition=partition)).error_code == 0
    there = int((paths[1] / "t-1").exists())
    assert (paths[1] / f"t-{there}").exists()
    return 1 - there, there


def break_directory(path: Path) -> Path:
    """Replaces the directory by a file, so that it cannot be created; keeps its content aside."""
    aside = path.rename(path.with_name("aside"))
    path.write_bytes(b"")
    return aside


def mend_directory(path: Path, aside: Path) -> None:
    path.unlink()
    aside.rename(path)


async def check_out_of_reach(client: Client, partition: int) -> None:
    assert (await client.produce("t", make_batch(b"x"), partition=partition)).error_code == STORAGE_ERROR
    assert (await client.fetch("t", 0, partition=partition)).error_code == STORAGE_ERROR
    assert (await client.list_offset("t", -1, partition=partition)).error_code == STORAGE_ERROR
    assert (await client.delete_records("t", 1, partition=partition)).error_code == STORAGE_ERROR
    everything = await client.ask("Metadata", 12, topics=None)
    (of_all,) = [topic for topic in everything.topics if topic.name == "t"]
    asked = [describe_topic_partitions.TopicRequest(name="t")]
    (described,) = (await client.ask("DescribeTopicPartitions", 0, topics=asked)).topics
    for topic in (await client.topic_metadata("t"), of_all, described):
        leaders = {
            partition.partition_index: (partition.leader_id, partition.error_code) for partition in topic.partitions
        }
        assert leaders == {partition: (-1, ErrorCode.LEADER_NOT_AVAILABLE), 1 - partition: (1, 0)}
        offline = {partition.partition_index: list(partition.offline_replicas) for partition in topic.partitions}
        assert offline == {partition: [1], 1 - partition: []}


async def states(client: Client) -> dict[str, tuple[int, set[tuple[str, int]]]]:
    response = await client.ask("DescribeLogDirs", 4, topics=None)
    return {
        Path(result.log_dir).name: (
            result.error_code,
            {(topic.name, partition.partition_index) for topic in result.topics for partition in topic.partitions},
        )
        for result in response.results
    }


async def test_a_directory_that_is_broken_at_the_start_is_offline_and_the_other_is_served(
    paths: tuple[Path, Path],
) -> None:
    here, there = await fill(paths)
    aside = break_directory(paths[1])
    async with serving(*paths) as client:
        assert (await client.produce("t", make_batch(b"second"), partition=here)).base_offset == 1
        await check_out_of_reach(client, there)
        assert await states(client) == {"one": (0, {("t", here)}), "two": (STORAGE_ERROR, set())}
        assert not (paths[0] / f"t-{there}").exists()
        # New partitions are created in a working directory.
        await client.create_topic("new", 2)
        assert [(await client.produce("new", make_batch(b"v"), partition=index)).error_code for index in (0, 1)] == [
            0,
            0,
        ]
        for target, code in ((paths[1], STORAGE_ERROR), (paths[0] / "no", ErrorCode.LOG_DIR_NOT_FOUND)):
            topics = [move_messages.AlterReplicaLogDirTopic(name="t", partitions=[here])]
            dirs = [move_messages.AlterReplicaLogDir(path=str(target), topics=topics)]
            answer = await client.ask("AlterReplicaLogDirs", 2, dirs=dirs)
            assert answer.results[0].partitions[0].error_code == code
    mend_directory(paths[1], aside)
    async with serving(*paths) as client:
        for partition, values in ((here, [b"first", b"second"]), (there, [b"first"])):
            assert [record.value for record in await client.read_all("t", partition=partition)] == values
        assert (await client.produce("t", make_batch(b"second"), partition=there)).base_offset == 1


async def test_a_topic_made_anew_while_a_directory_was_away_keeps_its_own_records(paths: tuple[Path, Path]) -> None:
    _, there = await fill(paths)
    async with serving(*paths) as client:
        await client.produce("t", make_batch(b"so the old log is the longer one"), partition=there)
    aside = break_directory(paths[1])
    async with serving(*paths) as client:
        await client.ask("DeleteTopics", 5, topic_names=["t"], timeout_ms=30_000)
        await client.create_topic("t", 2)
        await client.produce("t", make_batch(b"new"), partition=there)
    mend_directory(paths[1], aside)
    async with serving(*paths) as client:
        assert [record.value for record in await client.read_all("t", partition=there)] == [b"new"]
    assert not (paths[1] / f"t-{there}").exists()


async def test_without_the_first_directory_or_any_there_is_no_start_but_one_line(paths: tuple[Path, Path]) -> None:
    await fill(paths)
    break_directory(paths[0])
    with pytest.RaisesGroup(pytest.RaisesExc(UserError, match=r"^Cannot use the data directory: [^\n]*$")):
        async with serving(*paths):
            pass
    assert (paths[1] / ".kafka_cleanshutdown").exists(), "the other was not touched"


async def test_a_directory_that_breaks_is_offline_as_one_that_was_broken(
    mock_clock: trio.testing.MockClock, disk: PartlyFailingDisk, paths: tuple[Path, Path]
) -> None:
    here, there = await fill(paths)
    async with serving(*paths) as client:
        assert len(await client.read_all("t", partition=there)) == 1
        disk.broken = paths[1]
        assert (await client.produce("t", make_batch(b"x"), partition=there)).error_code == STORAGE_ERROR
        with trio.fail_after(30):
            while (await client.fetch("t", 0, partition=there)).error_code != STORAGE_ERROR:
                mock_clock.jump(1.1)
                await trio.testing.wait_all_tasks_blocked()
        disk.broken = None
        await check_out_of_reach(client, there)
        assert await states(client) == {"one": (0, {("t", here)}), "two": (STORAGE_ERROR, set())}
        assert (await client.produce("t", make_batch(b"second"), partition=here)).base_offset == 1
    async with serving(*paths) as client:
        assert [record.value for record in await client.read_all("t", partition=there)] == [b"first"]
        assert (await client.produce("t", make_batch(b"second"), partition=there)).error_code == 0
