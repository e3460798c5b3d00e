"""A disk that is full, broken or slow: producers get an error, reads go on, nothing acknowledged is lost."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from kbroker.protocol.error_codes import ErrorCode
from kbroker.testing.running_broker import RunningBroker
from tests.broker.batches import make_batch
from tests.broker.child import child_broker
from tests.broker.conftest import Connect, StartBroker
from tests.broker.failing_disk import FailingDisk
from tests.broker.wire import Client, connect, fetch_members, produce_members, records_of

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingDisk]:
    disk = FailingDisk()
    monkeypatch.setattr("kbroker.server.broker.OsFileSystem", lambda: disk)
    yield disk
    disk.may_sync.set()


@pytest.fixture
async def broker(disk: FailingDisk, start_broker: StartBroker) -> RunningBroker:
    return await start_broker()


async def values_of(client: Client, topic: str, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in await client.read_all(topic, partition=partition)]


async def until_writable(client: Client, mock_clock: trio.testing.MockClock) -> None:
    """Waits until the broker has noticed, in a thread, that the disk has space."""
    with trio.fail_after(600):
        while not (await client.ask("DescribeLogDirs", 4, topics=[])).results[0].usable_bytes:
            mock_clock.jump(1.1)
            await trio.testing.wait_all_tasks_blocked(0.02)


async def test_a_full_disk_refuses_produce_serves_reads_and_goes_on_when_there_is_room(
    mock_clock: trio.testing.MockClock, disk: FailingDisk, start_broker: StartBroker, connect_to: Connect
) -> None:
    broker = await start_broker()
    client = await connect_to(broker)
    await client.create_topic("t", 2)
    producer_id = await client.new_producer_id()
    first, second = (make_batch(b"%d" % n, producer_id=producer_id, sequence=n) for n in range(2))
    assert (await client.produce("t", first)).error_code == 0
    disk.is_full = True
    for _ in range(3):
        assert (await client.produce("t", bytes(second))).error_code == STORAGE_ERROR
        assert (await client.produce("t", make_batch(b"x"), partition=1)).error_code == STORAGE_ERROR
        assert await values_of(client, "t") == [b"0"]
    mock_clock.jump(1.5)
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert (await client.produce("t", bytes(second))).error_code == STORAGE_ERROR
    disk.is_full = False
    await until_writable(client, mock_clock)
    answer = await client.produce("t", second)
    assert (answer.error_code, answer.base_offset) == (0, 1)
    assert await values_of(client, "t") == [b"0", b"1"]
    await broker.stop()
    client = await connect_to(await start_broker())
    assert await values_of(client, "t") == [b"0", b"1"]


async def test_a_later_batch_waits_for_one_that_the_full_disk_refused(
    mock_clock: trio.testing.MockClock, disk: FailingDisk, broker: RunningBroker, client: Client
) -> None:
    await client.create_topic("t")
    producer_id = await client.new_producer_id()
    batches = [make_batch(b"%d" % n, producer_id=producer_id, sequence=n) for n in range(4)]
    assert (await client.produce("t", bytes(batches[0]))).error_code == 0
    disk.is_full = True
    for number in (1, 2):
        assert (await client.produce("t", bytes(batches[number]))).error_code == STORAGE_ERROR
    disk.is_full = False
    await until_writable(client, mock_clock)
    assert (await client.produce("t", bytes(batches[3]))).error_code == STORAGE_ERROR  # in flight all the time
    for number in (1, 2, 3):
        assert (await client.produce("t", bytes(batches[number]))).error_code == 0
    assert await values_of(client, "t") == [b"0", b"1", b"2", b"3"]


async def test_a_disk_that_fills_up_at_a_roll_loses_nothing(
    mock_clock: trio.testing.MockClock, disk: FailingDisk, broker: RunningBroker, client: Client
) -> None:
    await client.create_topic("t", segment_bytes="500")
    acknowledged: list[bytes] = []
    for number in range(40):
        disk.is_full = number % 3 == 1
        value = b"%d" % number
        answer = await client.produce("t", make_batch(value.ljust(150, b".")))
        assert answer.error_code == (STORAGE_ERROR if disk.is_full else 0)
        if not answer.error_code:
            assert answer.base_offset == len(acknowledged)
            acknowledged.append(value)
        else:
            disk.is_full = False
            await until_writable(client, mock_clock)
    assert [value.rstrip(b".") for value in await values_of(client, "t") if value] == acknowledged


async def test_a_full_disk_stops_neither_checkpoints_nor_deletions_for_good(
    mock_clock: trio.testing.MockClock, disk: FailingDisk, start_broker: StartBroker, connect_to: Connect
) -> None:
    broker = await start_broker({"log.flush.offset.checkpoint.interval.ms": "1000"})
    client = await connect_to(broker)
    await client.create_topic("t")
    await client.produce("t", make_batch(b"v"))
    disk.is_full = True
    for _ in range(3):
        mock_clock.jump(2)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert await values_of(client, "t") == [b"v"]
    disk.is_full = False
    await until_writable(client, mock_clock)
    assert (await client.produce("t", make_batch(b"w"))).error_code == 0


async def test_a_topic_made_on_a_full_disk_works_when_there_is_room(
    mock_clock: trio.testing.MockClock, disk: FailingDisk, broker: RunningBroker, client: Client
) -> None:
    disk.is_full = True
    await client.try_create_topic("t")
    assert (await client.produce("t", make_batch(b"v"))).error_code != 0
    await client.expect_service()
    disk.is_full = False
    await until_writable(client, mock_clock)
    await client.try_create_topic("t")
    assert (await client.produce("t", make_batch(b"v"))).error_code == 0
    assert await values_of(client, "t") == [b"v"]


async def test_a_stop_on_a_full_disk_ends_and_the_next_start_recovers(
    disk: FailingDisk, start_broker: StartBroker, connect_to: Connect, data_dir: Path
) -> None:
    broker = await start_broker()
    client = await connect_to(broker)
    await client.create_topic("t")
    for number in range(5):
        await client.produce("t", make_batch(b"%d" % number))
    disk.is_full = True
    await broker.stop()
    assert not (data_dir / ".kafka_cleanshutdown").exists()
    disk.is_full = False
    client = await connect_to(await start_broker())
    assert await values_of(client, "t") == [b"0", b"1", b"2", b"3", b"4"]
    assert (await client.produce("t", make_batch(b"5"))).base_offset == 5


async def test_a_broken_disk_is_offline_for_writes_until_the_restart(
    mock_clock: trio.testing.MockClock, disk: FailingDisk, start_broker: StartBroker, connect_to: Connect
) -> None:
    broker = await start_broker()
    client = await connect_to(broker)
    await client.create_topic("t")
    await client.produce("t", make_batch(b"before"))
    disk.write_error = errno.EIO
    assert (await client.produce("t", make_batch(b"x"))).error_code == STORAGE_ERROR
    disk.write_error = None
    assert (await client.produce("t", make_batch(b"x"))).error_code == STORAGE_ERROR
    assert await values_of(client, "t") == [b"before"]
    await broker.stop()
    client = await connect_to(await start_broker())
    assert await values_of(client, "t") == [b"before"]
    assert (await client.produce("t", make_batch(b"after"))).error_code == 0


async def test_with_flush_messages_1_nothing_is_acknowledged_or_shown_before_its_fsync(
    disk: FailingDisk, broker: RunningBroker, client: Client, connect_to: Connect
) -> None:
    await client.create_topic("t", flush_messages="1")
    await client.create_topic("other")
    consumer, waiting = await connect_to(broker), await connect_to(broker)
    assert (await client.produce("t", make_batch(b"first"))).error_code == 0
    assert disk.log_syncs == 1
    disk.may_sync.clear()
    await waiting.send("Fetch", 11, **fetch_members({("t", 0): 1}, max_wait_ms=20_000))
    for number in range(3):
        await client.send("Produce", 9, **produce_members("t", make_batch(b"%d" % number)))
    # Another topic is not held up by it, and shows that the broker has read the earlier requests.
    assert (await consumer.produce("other", make_batch(b"v"))).error_code == 0
    for isolation_level in (0, 1):
        answer = await consumer.fetch("t", 0, isolation_level=isolation_level)
        assert (answer.high_watermark, [record.value for record in records_of(answer)]) == (1, [b"first"])
    assert (await consumer.list_offset("t", -1)).offset == 1
    disk.may_sync.set()
    for number in range(3):
        answer = (await client.receive()).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, 1 + number)
    assert records_of((await waiting.receive()).responses[0].partitions[0])[0].value == b"0"
    assert await values_of(consumer, "t") == [b"first", b"0", b"1", b"2"]


async def test_recovered_records_of_a_durable_topic_are_fsynced_before_they_are_visible(
    disk: FailingDisk, start_broker: StartBroker, connect_to: Connect, data_dir: Path
) -> None:
    async with child_broker(data_dir) as child:
        async with connect(child.port) as client:
            await client.create_topic("durable", flush_messages="1")
            await client.create_topic("plain")
            assert (await client.produce("durable", make_batch(b"v"))).error_code == 0
            assert (await client.produce("plain", make_batch(b"v"))).error_code == 0
        await child.kill()
    # After a crash, the broker cannot know whether the kernel had written all of it.
    client = await connect_to(await start_broker())
    assert disk.log_syncs == 1
    assert await values_of(client, "durable") == [b"v"]


async def test_a_group_commit_needs_fewer_fsyncs_than_batches(
    disk: FailingDisk, broker: RunningBroker, client: Client
) -> None:
    await client.create_topic("t", flush_messages="1")
    frames = [client.encode("Produce", 9, **produce_members("t", make_batch(b"%d" % n))) for n in range(100)]
    await client.send_bytes(b"".join(frames))
    for number in range(100):
        answer = (await client.receive()).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, number)
    assert 1 <= disk.log_syncs < 50


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_a_failed_fsync_is_an_error_and_is_never_tried_again(
    mock_clock: trio.testing.MockClock, disk: FailingDisk, start_broker: StartBroker, connect_to: Connect, number: int
) -> None:
    broker = await start_broker()
    client = await connect_to(broker)
    await client.create_topic("t", flush_messages="1")
    assert (await client.produce("t", make_batch(b"safe"))).error_code == 0
    disk.sync_error = number
    assert (await client.produce("t", make_batch(b"unsure"))).error_code == STORAGE_ERROR
    disk.sync_error = None
    syncs = disk.log_syncs
    assert (await client.produce("t", make_batch(b"refused"))).error_code == STORAGE_ERROR
    answer = await client.fetch("t", 0)
    assert [record.value for record in records_of(answer)] == [b"safe"]
    assert disk.log_syncs == syncs


async def test_a_produce_whose_fsync_takes_too_long_times_out(
    disk: FailingDisk, broker: RunningBroker, client: Client
) -> None:
    await client.create_topic("t", flush_messages="1")
    disk.may_sync.clear()
    members = {**produce_members("t", make_batch(b"v")), "timeout_ms": 100}
    response = await client.ask("Produce", 9, **members)
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    disk.may_sync.set()


async def test_a_topic_deleted_during_its_fsync_does_not_affect_others(
    disk: FailingDisk, broker: RunningBroker, client: Client, connect_to: Connect
) -> None:
    await client.create_topic("t", flush_messages="1")
    await client.create_topic("other", flush_messages="1")
    producer = await connect_to(broker)
    disk.may_sync.clear()
    await producer.send("Produce", 9, **produce_members("t", make_batch(b"v")))
    await trio.testing.wait_all_tasks_blocked(0.05)
    await client.delete_topic("t")
    answer = (await producer.receive()).responses[0].partition_responses[0]
    assert answer.error_code != 0
    disk.may_sync.set()
    assert (await client.produce("other", make_batch(b"v"))).error_code == 0
    await client.create_topic("t")
    assert (await client.produce("t", make_batch(b"new"))).base_offset == 0


async def test_a_single_node_ends_when_its_only_directory_fails(data_dir: Path) -> None:
    """Apache Kafka ends too. The directory fails here because a partition was removed by hand."""
    async with child_broker(data_dir) as child, connect(child.port) as client:
        await client.create_topic("t", segment_bytes="300")
        assert (await client.produce("t", make_batch(bytes(200)))).error_code == 0
        shutil.rmtree(data_dir / "t-0")
        assert (await client.produce("t", make_batch(bytes(200)))).error_code == STORAGE_ERROR
        with trio.fail_after(60):
            assert await child.process.wait() == 1
        assert "Shutdown broker because all log dirs in" in child.stderr
        assert "Traceback" not in child.stderr


async def test_files_of_deleted_segments_are_removed_off_the_loop(
    mock_clock: trio.testing.MockClock,
    disk: FailingDisk,
    start_broker: StartBroker,
    connect_to: Connect,
    data_dir: Path,
) -> None:
    client = await connect_to(await start_broker({"log.retention.check.interval.ms": "1000"}))
    await client.create_topic("t", segment_bytes="300", retention_bytes="0", file_delete_delay_ms="0")
    for _ in range(9):
        await client.produce("t", make_batch(bytes(100)))
    logs = data_dir / "t-0"
    first = logs / f"{0:020d}.log"
    with trio.fail_after(30):
        while first.exists() or list(logs.glob("*.deleted")):
            mock_clock.jump(1.1)
            await client.expect_service()
    assert disk.removers
    assert threading.main_thread() not in disk.removers
