"""A real disk without a free byte: the broker restarts, serves reads, and what frees space works."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from kbroker.config.resources import ConfigOperation, ConfigResourceType
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import incremental_alter_configs as alter_configs
from tests.broker.batches import make_batch
from tests.broker.child import ChildBroker, child_broker
from tests.broker.small_disk import SmallDisk, small_disk
from tests.broker.wire import Client, connect

MB = 1 << 20
DISK_BYTES = 24 * MB
RECORD = bytes(200_000)
PATIENCE_SECONDS = 60.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


@asynccontextmanager
async def broker_on(disk: SmallDisk, **properties: str) -> AsyncIterator[tuple[ChildBroker, Client]]:
    arguments = [f"--set={name.replace('_', '.')}={value}" for name, value in properties.items()]
    async with (
        child_broker(disk.path / "data", *arguments, within=disk.within) as child,
        connect(child.port) as client,
    ):
        yield child, client


async def produce_until_full(client: Client, topic: str) -> int:
    """Returns the number of records that were acknowledged. The last answer names the cause."""
    written = 0
    while True:
        answer = await client.produce(topic, make_batch(RECORD))
        if answer.error_code:
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert answer.error_message == "The disk of broker 1 is full"
            return written
        written += 1


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        while not await condition():  # noqa: ASYNC110
            await trio.sleep(0.1)


async def count_of(client: Client, topic: str) -> int:
    return len(await client.read_all(topic))


@pytest.mark.parametrize("is_clean", [True, False])
async def test_a_broker_restarts_on_a_full_disk_and_serves_reads(disk: SmallDisk, is_clean: bool) -> None:
    async with broker_on(disk) as (child, client):
        await client.create_topic("t")
        written = await produce_until_full(client, "t")
        assert written
        disk.fill("filler")
        if is_clean:
            assert await child.terminate() == 0
        else:
            await child.kill()
        assert "Traceback" not in child.stderr
    for number in range(2):
        disk.fill(f"filler-{number}")
        assert disk.free_bytes == 0
        async with broker_on(disk) as (child, client):
            assert await count_of(client, "t") == written
            assert (await client.produce("t", make_batch(b"v"))).error_message == "The disk of broker 1 is full"
            await child.kill()
            assert "Traceback" not in child.stderr


async def test_metadata_changes_and_deletions_work_without_a_free_byte(disk: SmallDisk) -> None:
    async with broker_on(disk) as (child, client):
        await client.create_topic("large")
        await client.create_topic("small")
        assert await produce_until_full(client, "large")
        disk.fill("filler")
        await set_configs(client, "small", retention_ms="1000")
        assert (await client.try_create_topic("other")).error_code == 0
        await client.delete_topic("small")
        directories = await client.ask("DescribeLogDirs", 4, topics=[])
        assert directories.results[0].usable_bytes == 0
        await client.delete_topic("large")

        async def accepts_records() -> bool:
            return (await client.produce("other", make_batch(b"v"))).error_code == 0

        await eventually(accepts_records)
        assert disk.names("data/kbroker.reserve") == ["kbroker.reserve"]
        assert (await client.ask("DescribeLogDirs", 4, topics=[])).results[0].usable_bytes > 0
        assert await child.terminate() == 0
        assert "Traceback" not in child.stderr


async def test_retention_frees_a_full_disk_soon_after_the_delay(disk: SmallDisk) -> None:
    intervals = {"log_retention_check_interval_ms": "1000"}
    async with broker_on(disk, **intervals) as (child, client):
        await client.create_topic("t", segment_bytes=str(MB), file_delete_delay_ms="1000")
        assert await produce_until_full(client, "t")
        disk.fill("filler")
        await set_configs(client, "t", retention_bytes="0")

        async def accepts_records() -> bool:
            return (await client.produce("t", make_batch(b"v"))).error_code == 0

        await eventually(accepts_records)
        assert "Traceback" not in child.stderr


async def test_commands_name_the_cause_and_how_much_was_written(disk: SmallDisk) -> None:
    async with broker_on(disk) as (child, client):
        await client.create_topic("t")
        before = await run_command(child, "cluster", "describe")
        assert (before.returncode, b"is full" in before.stdout) == (0, False)
        lines = b"".join(b"%d" % number + b"x" * 200_000 + b"\n" for number in range(150))  # more than the disk
        produced = await run_command(child, "produce", "t", stdin=lines)
        assert produced.returncode == 1
        error = produced.stderr.decode()
        assert "The disk of broker 1 is full" in error
        assert "Traceback" not in error
        assert f"Wrote {await count_of(client, 't')} records to topic t before this error." in error
        described = await run_command(child, "cluster", "describe")
        assert described.returncode == 0
        path = disk.path / "data"
        assert f"The disk of broker 1 is full: {path} accepts no records." in described.stdout.decode()
        await client.delete_topic("t")

        async def is_written_again() -> bool:
            return b"is full" not in (await run_command(child, "cluster", "describe")).stdout

        await eventually(is_written_again)


async def run_command(child: ChildBroker, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "kbroker", *arguments, "--bootstrap", f"127.0.0.1:{child.port}"]
    return await trio.run_process(command, stdin=stdin, capture_stdout=True, capture_stderr=True, check=False)


async def test_a_disk_that_another_process_filled_is_used_again_when_it_has_space(disk: SmallDisk) -> None:
    async with broker_on(disk) as (_, client):
        await client.create_topic("t")
        disk.fill("filler")
        assert await produce_until_full(client, "t") < 10
        disk.remove("filler")

        async def accepts_records() -> bool:
            return (await client.produce("t", make_batch(b"v"))).error_code == 0

        await eventually(accepts_records)


async def test_without_a_reserve_a_start_on_a_full_disk_says_in_one_line_what_to_do(disk: SmallDisk) -> None:
    async with broker_on(disk, kbroker_log_dir_reserve_bytes="0") as (child, client):
        await client.create_topic("t")
        assert await child.terminate() == 0
    disk.fill("filler")
    with pytest.raises(AssertionError, match="Free some megabytes on the disk, then start the broker again") as caught:
        async with broker_on(disk, kbroker_log_dir_reserve_bytes="0"):
            pass
    assert "Traceback" not in str(caught.value).partition("it ended before it was ready")[2]


async def set_configs(client: Client, topic: str, **configs: str) -> None:
    changes = [
        alter_configs.AlterableConfig(name=name.replace("_", "."), config_operation=ConfigOperation.SET, value=value)
        for name, value in configs.items()
    ]
    resource = alter_configs.AlterConfigsResource(
        resource_type=ConfigResourceType.TOPIC, resource_name=topic, configs=changes
    )
    response = await client.ask("IncrementalAlterConfigs", 1, resources=[resource], validate_only=False)
    assert response.responses[0].error_code == 0


async def test_a_disk_without_room_refuses_produce_until_there_is_some(disk: SmallDisk) -> None:
    values: list[bytes] = []
    async with broker_on(disk, log_flush_offset_checkpoint_interval_ms="100") as (child, client):
        await client.create_topic("t", segment_bytes="1048576")
        await client.create_topic("other")
        await client.produce("other", make_batch(b"v"))

        async def produce() -> int:
            value = b"%d" % len(values)
            answer = await client.produce("t", make_batch(value.ljust(100_000, b".")))
            if not answer.error_code:
                assert answer.base_offset == len(values)
                values.append(value)
            return int(answer.error_code)

        for _ in range(5):
            assert await produce() == 0
        disk.fill("ballast", leave_bytes=1_500_000)
        with trio.fail_after(30):
            while (code := await produce()) == 0:
                pass
        assert code == ErrorCode.KAFKA_STORAGE_ERROR
        for _ in range(5):
            assert await produce() == ErrorCode.KAFKA_STORAGE_ERROR
            assert [record.value for record in await client.read_all("other")] == [b"v"]
        assert len(await client.read_all("t")) == len(values)
        await client.try_create_topic("while-full")
        disk.remove("ballast")
        with trio.fail_after(20):
            while await produce() != 0:
                await client.expect_service()
        assert [(record.value or b"").rstrip(b".") for record in await client.read_all("t")] == values
        assert await child.terminate() == 0
        assert "Traceback" not in child.stderr
    async with broker_on(disk) as (_, client):
        assert [(record.value or b"").rstrip(b".") for record in await client.read_all("t")] == values
