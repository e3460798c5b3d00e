"""Stop and start keep everything. A broker that cannot start says so in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from kbroker.errors import UserError
from kbroker.protocol.compression import Codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import offset_commit
from kbroker.testing.running_broker import running_broker
from tests.broker.batches import make_batch
from tests.broker.child import child_broker, spawn
from tests.broker.conftest import Connect, StartBroker
from tests.broker.transactions import committed_offset
from tests.broker.wire import Client, connect, records_of


async def state_of(client: Client, topic: str) -> dict[str, object]:
    found = await client.topic_metadata(topic)
    answer = await client.fetch(topic, 5)
    return {
        "topic id": found.topic_id,
        "leader epoch": found.partitions[0].leader_epoch,
        "high watermark": answer.high_watermark,
        "log start": answer.log_start_offset,
        "earliest": (await client.list_offset(topic, -2)).offset,
        "latest": (await client.list_offset(topic, -1)).offset,
        "by timestamp": (await client.list_offset(topic, 1007)).offset,
        "largest timestamp": (await client.list_offset(topic, -3, version=7)).offset,
        "records": await client.read_all(topic, offset=5),
    }


async def test_a_clean_restart_changes_nothing(start_broker: StartBroker, connect_to: Connect, data_dir: Path) -> None:
    broker = await start_broker()
    client = await connect_to(broker)
    await client.create_topic("t", segment_bytes="600", max_message_bytes="400")
    for number in range(20):
        codec = Codec.GZIP if number % 2 else Codec.NONE
        await client.produce("t", make_batch(bytes(100), timestamp=1000 + number, codec=codec))
    assert (await client.delete_records("t", 5)).low_watermark == 5
    before = await state_of(client, "t")
    cluster_id = (await client.ask("Metadata", 12, topics=[])).cluster_id
    for _ in range(2):
        await broker.stop()
        assert (data_dir / ".kafka_cleanshutdown").exists()
        broker = await start_broker()
        client = await connect_to(broker)
        assert await state_of(client, "t") == before
        assert (await client.ask("Metadata", 12, topics=[])).cluster_id == cluster_id
    assert (await client.fetch("t", 4)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await client.produce("t", make_batch(bytes(1000)))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert (await client.produce("t", make_batch(b"v"))).base_offset == 20


async def test_the_start_after_a_crash_knows_deleted_records_that_were_checkpointed(data_dir: Path) -> None:
    quick = "--set=log.flush.start.offset.checkpoint.interval.ms=20"
    checkpoint = data_dir / "log-start-offset-checkpoint"
    async with child_broker(data_dir, quick, "--set=log.flush.offset.checkpoint.interval.ms=20") as child:
        async with connect(child.port) as client:
            await client.create_topic("t")
            for _ in range(10):
                await client.produce("t", make_batch(b"v"))
            await client.delete_records("t", 6)
            with trio.fail_after(20):
                while not (checkpoint.exists() and b"t 0 6" in checkpoint.read_bytes()):
                    await client.expect_service()
        await child.kill()
    async with child_broker(data_dir) as child, connect(child.port) as client:
        answer = await client.fetch("t", 6)
        assert (answer.log_start_offset, len(records_of(answer))) == (6, 4)


async def test_a_deleted_topic_stays_deleted_also_after_a_crash(data_dir: Path) -> None:
    async with child_broker(data_dir) as child:
        async with connect(child.port) as client:
            await client.create_topic("gone")
            await client.create_topic("again")
            for topic in ("gone", "again"):
                await client.produce(topic, make_batch(b"old"))
                await client.delete_topic(topic)
            await client.create_topic("again")
        await child.kill()
    async with child_broker(data_dir, "--set=auto.create.topics.enable=false") as child, connect(child.port) as client:
        assert (await client.topic_metadata("gone")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await client.read_all("again") == []
        with trio.fail_after(20):
            while has_directory_of("gone", data_dir):
                await client.expect_service()


def has_directory_of(topic: str, data_dir: Path) -> bool:
    return any(path.name.startswith(topic) for path in data_dir.iterdir())


async def test_a_directory_of_another_format_is_refused_in_one_line(data_dir: Path) -> None:
    async with running_broker(data_dir):
        pass
    (data_dir / "kbroker.format").write_text("99\n")
    child = await spawn(data_dir)
    with trio.fail_after(30):
        assert await child.process.wait() == 1
    lines = child.stderr.splitlines()
    assert len(lines) == 1
    assert "format" in lines[0]
    assert "99" in lines[0]


async def test_damaged_small_files_are_written_anew_or_refused_in_one_line(
    start_broker: StartBroker, connect_to: Connect, data_dir: Path
) -> None:
    broker = await start_broker()
    client = await connect_to(broker)
    await client.create_topic("t")
    await client.produce("t", make_batch(b"v"))
    await broker.stop()
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint"):
        (data_dir / name).write_bytes(b"\xff\x00garbage" * 9)
    (data_dir / "t-0" / "leader-epoch-checkpoint").write_bytes(b"\xff\x00garbage" * 9)
    (data_dir / "t-0" / "partition.metadata").write_bytes(b"\xff\x00garbage" * 9)
    broker = await start_broker()
    client = await connect_to(broker)
    assert [record.value for record in await client.read_all("t")] == [b"v"]
    assert (await client.produce("t", make_batch(b"w"))).base_offset == 1
    await broker.stop()
    (data_dir / "meta.properties").write_bytes(b"\xff\x00garbage")
    with pytest.raises(ExceptionGroup) as refused:
        async with running_broker(data_dir):
            pass
    assert refused.group_contains(UserError, match=r"meta\.properties is damaged")


async def test_a_second_broker_on_the_directory_is_refused_and_the_first_lives_on(
    start_broker: StartBroker, connect_to: Connect, data_dir: Path
) -> None:
    client = await connect_to(await start_broker())
    with pytest.raises(ExceptionGroup) as refused:
        async with running_broker(data_dir):
            pass
    assert refused.group_contains(UserError, match="Failed to acquire lock on file")
    await client.create_topic("t")
    assert (await client.produce("t", make_batch())).error_code == 0


async def test_a_stop_answers_open_requests_and_does_not_wait_for_idle_clients(
    start_broker: StartBroker, connect_to: Connect
) -> None:
    broker = await start_broker()
    idle, waiting = await connect_to(broker), await connect_to(broker)
    await idle.create_topic("t")
    answers: list[object] = []

    async def fetch() -> None:
        answers.append(await waiting.fetch("t", 0, max_wait_ms=25_000))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch)
            await trio.testing.wait_all_tasks_blocked(0.05)
            await broker.stop()
    assert len(answers) == 1
    assert await idle.wait_closed() == b""


async def test_a_log_that_rotted_while_the_broker_was_stopped_gets_a_new_epoch_before_it_serves(
    mock_clock: trio.testing.MockClock, start_broker: StartBroker, connect_to: Connect, data_dir: Path
) -> None:
    broker = await start_broker()
    client = await connect_to(broker)
    await client.create_topic("t")
    for value in (b"first", b"second"):
        await client.produce("t", make_batch(value))
    await broker.stop()
    log = data_dir / "t-0" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:-1])
    client = await connect_to(await start_broker())
    storage_error = ErrorCode.KAFKA_STORAGE_ERROR
    assert (await client.fetch("t", 0)).error_code == storage_error
    assert (await client.produce("t", make_batch(b"new"))).error_code == storage_error
    assert (await client.list_offset("t", -1)).error_code == storage_error
    assert (await client.delete_records("t", 1)).error_code == storage_error
    mock_clock.jump(1.1)
    with trio.fail_after(30):
        while (answer := await client.produce("t", make_batch(b"new"))).error_code == storage_error:
            await trio.testing.wait_all_tasks_blocked()
    assert (answer.error_code, answer.base_offset) == (0, 1)
    assert (await client.topic_metadata("t")).partitions[0].leader_epoch == 1
    assert [record.value for record in await client.read_all("t")] == [b"first", b"new"]


async def test_groups_are_there_again_after_their_log_was_recovered(
    mock_clock: trio.testing.MockClock, start_broker: StartBroker, connect_to: Connect, data_dir: Path
) -> None:
    properties = {"offsets.topic.num.partitions": "1"}
    broker = await start_broker(properties)
    client = await connect_to(broker)
    await client.create_topic("t")
    assert (await client.ask("FindCoordinator", 3, key="g", key_type=0)).error_code == 0
    for offset in (3, 4):
        committed = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topics = [offset_commit.OffsetCommitRequestTopic(name="t", partitions=[committed])]
        answer = await client.ask("OffsetCommit", 8, group_id="g", topics=topics)
        assert answer.topics[0].partitions[0].error_code == 0
    await broker.stop()
    log = data_dir / "__consumer_offsets-0" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:-1])
    client = await connect_to(await start_broker(properties))
    mock_clock.jump(1.1)
    with trio.fail_after(30):
        while (found := await committed_offset(client, "g", "t"))[0] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            mock_clock.jump(0.2)
            await trio.testing.wait_all_tasks_blocked()
    assert found == (0, 3)
