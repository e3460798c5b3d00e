"""Partitions that move between data directories under load, and kill -9 while they do."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import alter_replica_log_dirs as messages
from kbroker.protocol.messages import incremental_alter_configs
from tests.broker.batches import make_batch
from tests.broker.child import ChildBroker, child_broker
from tests.broker.test_crash import IDEMPOTENT, PLAIN, SMALL_FILES, Load, create_topics
from tests.broker.wire import Client, connect

pytestmark = pytest.mark.slow

THROTTLE = "replica.alter.log.dirs.io.max.bytes.per.second"
PATIENCE_SECONDS = 30.0


async def move(client: Client, path: Path, *partitions: tuple[str, int]) -> list[int]:
    topics = [messages.AlterReplicaLogDirTopic(name=name, partitions=[index]) for name, index in partitions]
    asked = [messages.AlterReplicaLogDir(path=str(path), topics=topics)]
    response = await client.ask("AlterReplicaLogDirs", 2, dirs=asked)
    return [partition.error_code for topic in response.results for partition in topic.partitions]


async def where(client: Client) -> dict[tuple[str, int], dict[str, tuple[bool, int]]]:
    """Returns for each partition its directories: whether the replica there is a future one, and its lag."""
    response = await client.ask("DescribeLogDirs", 4, topics=None)
    found: dict[tuple[str, int], dict[str, tuple[bool, int]]] = {}
    for result in response.results:
        assert result.error_code == 0
        for topic in result.topics:
            for partition in topic.partitions:
                places = found.setdefault((topic.name, partition.partition_index), {})
                places[Path(result.log_dir).name] = (partition.is_future_key, partition.offset_lag)
    return found


async def wait_moved(client: Client, directory: str, *partitions: tuple[str, int]) -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        while True:
            found = await where(client)
            if all(found[partition] == {directory: (False, 0)} for partition in partitions):
                return


async def throttle(client: Client, bytes_per_second: int) -> None:
    config = incremental_alter_configs.AlterableConfig(name=THROTTLE, config_operation=0, value=str(bytes_per_second))
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=4, resource_name="1", configs=[config])
    response = await client.ask("IncrementalAlterConfigs", 1, resources=[resource])
    assert [topic.error_code for topic in response.responses] == [0]


async def test_partitions_are_spread_and_move_where_they_are_told(data_dir: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    async with child_broker(data_dir, more_dirs=[second]) as child, connect(child.port) as client:
        await client.create_topic("t", 4)
        places = await where(client)
        assert sorted(next(iter(places["t", index])) for index in range(4)) == ["data", "data", "second", "second"]
        for value in (b"a", b"b"):
            assert (await client.produce("t", make_batch(value))).error_code == 0
        assert await move(client, second, ("t", 0), ("t", 1), ("t", 2), ("t", 3)) == [0] * 4
        await wait_moved(client, "second", *(("t", index) for index in range(4)))
        assert (await client.produce("t", make_batch(b"c"))).base_offset == 2
        assert [record.value for record in await client.read_all("t")] == [b"a", b"b", b"c"]
        assert await move(client, tmp_path / "nowhere", ("t", 0)) == [ErrorCode.LOG_DIR_NOT_FOUND]
        assert await move(client, data_dir, ("later", 1)) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        await client.create_topic("later", 2)
        assert (await where(client))["later", 1] == {"data": (False, 0)}
        assert await child.terminate() == 0
    async with child_broker(data_dir, more_dirs=[second]) as child, connect(child.port) as client:
        assert "recovering" not in child.stderr
        assert (await where(client))["t", 0] == {"second": (False, 0)}
        assert [record.value for record in await client.read_all("t")] == [b"a", b"b", b"c"]


async def test_a_move_that_was_interrupted_is_told_of_and_begins_anew(data_dir: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    async with child_broker(data_dir, more_dirs=[second]) as child:
        async with connect(child.port) as client:
            await client.create_topic("filler")
            await client.create_topic("t")
            (source,) = (await where(client))["t", 0]
            target = data_dir if source == "second" else second
            await throttle(client, 1000)
            for _ in range(4):
                assert (await client.produce("t", make_batch(b"x" * 700_000))).error_code == 0
            assert await move(client, target, ("t", 0)) == [0]
            with trio.fail_after(PATIENCE_SECONDS):
                while (await where(client))["t", 0].get(target.name, (True, 4)) == (True, 4):
                    pass
            places = (await where(client))["t", 0]
            assert places[source] == (False, 0)
            assert places[target.name] == (True, 3)
        await child.kill()
    assert list(target.glob("t-0.*-future"))
    async with child_broker(data_dir, more_dirs=[second]) as child, connect(child.port) as client:
        await throttle(client, 10**9)
        await wait_moved(client, target.name, ("t", 0))
        assert len(await client.read_all("t")) == 4
        with trio.fail_after(PATIENCE_SECONDS):
            while list(target.glob("t-0.*")) or list((data_dir.parent / source).glob("t-0*")):
                await trio.lowlevel.checkpoint()


async def move_to_and_fro(port: int, directories: list[Path], rng: random.Random, codes: list[int]) -> None:
    async with connect(port) as client:
        while True:
            codes += await move(client, rng.choice(directories), rng.choice([*PLAIN, *IDEMPOTENT]))


async def crash_while_they_move(data_dir: Path, second: Path, *, seed: int, rounds: int, longest: int) -> None:
    rng = random.Random(seed)
    load, codes = Load(rng), list[int]()
    for number in range(rounds):
        async with child_broker(data_dir, *SMALL_FILES, more_dirs=[second]) as child:
            if number == 0:
                async with connect(child.port) as client:
                    await create_topics(client)
            else:
                await load.check(child)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_it_dies, child, [data_dir, second], rng, codes)
                await load.run_until(child, rng.randint(50, longest), "kill")
            assert "Traceback" not in child.stderr
    async with child_broker(data_dir, *SMALL_FILES, more_dirs=[second]) as child:
        assert await load.check(child) > 0
    assert len(codes) > 10
    assert set(codes) == {0}


async def _until_it_dies(child: ChildBroker, directories: list[Path], rng: random.Random, codes: list[int]) -> None:
    try:
        await move_to_and_fro(child.port, directories, rng, codes)
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, EOFError, AssertionError):
        await child.process.wait()


async def test_crashes_while_partitions_move_lose_nothing(data_dir: Path, tmp_path: Path) -> None:
    await crash_while_they_move(data_dir, tmp_path / "second", seed=11, rounds=3, longest=600)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [12, 13])
async def test_many_crashes_while_partitions_move_lose_nothing(data_dir: Path, tmp_path: Path, seed: int) -> None:
    await crash_while_they_move(data_dir, tmp_path / "second", seed=seed, rounds=8, longest=1500)
