"""Compacted topics over the wire: readers see the last value of each key, while other work goes on."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import incremental_alter_configs, offset_commit, offset_fetch
from kbroker.protocol.record_batch import iter_headers
from kbroker.protocol.records import Record, build_batch, iter_records
from tests.broker.batches import now_ms
from tests.broker.child import child_broker
from tests.broker.conftest import Connect, StartBroker
from tests.broker.wire import Client, connect

EAGER = {"log.cleaner.backoff.ms": "10", "log.cleaner.min.cleanable.ratio": "0.01"}
PATIENCE_SECONDS = 60.0
EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3


def batch_of(*pairs: tuple[bytes, bytes | None], codec: int = 0) -> bytearray:
    at = now_ms()
    return build_batch([Record(number, at, *pair) for number, pair in enumerate(pairs)], codec=codec)


async def read(client: Client, topic: str, offset: int = 0, *, partition: int = 0) -> list[Record]:
    """Reads as a consumer does: batches may be empty, offsets may be missing."""
    found: list[Record] = []
    while True:
        answer = await client.fetch(topic, offset, partition=partition)
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        data = bytes(answer.records or b"")
        if not data:
            return found
        for position, header in iter_headers(data):
            found += [record for record in iter_records(data, position) if record.offset >= offset]
            offset = header.last_offset + 1


async def wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        while not await condition():
            pass


async def fill(client: Client, topic: str, rng: random.Random, batches: int, *, codec: int = 0) -> dict[bytes, int]:
    """Returns the offset of the last value of each of ten keys. The offset is also the value."""
    newest: dict[bytes, int] = {}
    offset = (await client.list_offset(topic, LATEST)).offset
    for _ in range(batches):
        keys = [b"key-%d" % rng.randrange(10) for _ in range(rng.randint(1, 5))]
        pairs = [(key, b"%d" % (offset + number) + b" " * 100) for number, key in enumerate(keys)]
        answer = await client.produce(topic, batch_of(*pairs, codec=codec))
        assert (answer.error_code, answer.base_offset) == (0, offset)
        newest |= {key: offset + number for number, key in enumerate(keys)}
        offset += len(keys)
    return newest


async def close_segment(client: Client, topic: str) -> None:
    """Rolls the active segment: only closed segments are compacted."""
    assert (await client.produce(topic, batch_of((b"filler", b"x" * 3000)))).error_code == 0


@pytest.mark.parametrize("codec", [0, 4])
async def test_readers_see_the_last_value_of_each_key_at_its_offset(
    start_broker: StartBroker, connect_to: Connect, codec: int
) -> None:
    client = await connect_to(await start_broker(EAGER))
    await client.create_topic("table", cleanup_policy="compact", segment_bytes="3200")
    newest = await fill(client, "table", random.Random(1), 60, codec=codec)
    await close_segment(client, "table")
    end = (await client.list_offset("table", LATEST)).offset

    async def is_compacted() -> bool:
        return len(await read(client, "table")) == len(newest) + 1

    await wait_until(is_compacted)
    found = await read(client, "table")
    assert {record.key: record.offset for record in found[:-1]} == newest
    assert [record.value and int(record.value) for record in found[:-1]] == [record.offset for record in found[:-1]]
    assert (await client.list_offset("table", EARLIEST)).offset == 0
    assert (await client.list_offset("table", LATEST)).offset == end
    assert (await client.list_offset("table", MAX_TIMESTAMP)).offset in [record.offset for record in found]
    assert (await client.list_offset("table", 0)).offset == found[0].offset
    for offset in range(0, end, 7):
        wanted = next(record.offset for record in found if record.offset >= offset)
        assert (await read(client, "table", offset))[0].offset == wanted


async def test_configs_act_as_soon_as_they_are_altered(start_broker: StartBroker, connect_to: Connect) -> None:
    client = await connect_to(await start_broker({"log.cleaner.backoff.ms": "600000"}))
    await client.create_topic("table", segment_bytes="3200", delete_retention_ms="0")
    newest = await fill(client, "table", random.Random(2), 40)
    await close_segment(client, "table")
    before = len(await read(client, "table"))
    await trio.testing.wait_all_tasks_blocked()
    assert len(await read(client, "table")) == before

    async def alter(resource_type: int, name: str, **configs: str) -> None:
        entries = [
            incremental_alter_configs.AlterableConfig(name=key.replace("_", "."), config_operation=0, value=value)
            for key, value in configs.items()
        ]
        resource = incremental_alter_configs.AlterConfigsResource(
            resource_type=resource_type, resource_name=name, configs=entries
        )
        response = await client.ask("IncrementalAlterConfigs", 1, resources=[resource])
        assert [topic.error_code for topic in response.responses] == [0]

    async def has(count: int) -> bool:
        return len(await read(client, "table")) == count

    await alter(4, "", log_cleaner_backoff_ms="10")
    await alter(2, "table", cleanup_policy="compact")
    await wait_until(lambda: has(len(newest) + 1))
    # A tombstone, in a closed segment of its own: with delete.retention.ms=0 it goes with the round after the next.
    assert (await client.produce("table", batch_of((b"key-1", None)))).error_code == 0
    await alter(2, "table", min_cleanable_dirty_ratio="0.01")

    async def is_deleted() -> bool:
        await close_segment(client, "table")
        return b"key-1" not in [record.key for record in await read(client, "table")]

    await wait_until(is_deleted)


async def test_compacted_and_deleted_at_once(start_broker: StartBroker, connect_to: Connect) -> None:
    client = await connect_to(await start_broker({**EAGER, "log.retention.check.interval.ms": "20"}))
    await client.create_topic("both", cleanup_policy="compact,delete", segment_bytes="3200", retention_bytes="9000")
    for seed in range(6):
        await fill(client, "both", random.Random(seed), 30)
        for number in range(5):  # keys of their own, that only retention takes away
            assert (await client.produce("both", batch_of((b"%d-%d" % (seed, number), b"x" * 2900)))).error_code == 0

    async def is_short() -> bool:
        try:
            found = await read(client, "both", (await client.list_offset("both", EARLIEST)).offset)
        except AssertionError:
            return False  # retention has moved the start
        keys = [record.key for record in found]
        return found[0].offset > 0 and sum(len(record.value or b"") for record in found) < 14_000 and len(keys) < 20

    await wait_until(is_short)


async def test_committed_offsets_shrink_to_the_last_of_each_and_load(
    start_broker: StartBroker, connect_to: Connect, data_dir: Path
) -> None:
    properties = {**EAGER, "offsets.topic.num.partitions": "1", "offsets.topic.segment.bytes": "20000"}
    broker = await start_broker(properties)
    client = await connect_to(broker)
    await client.create_topic("t", 3)

    async def commit(offset: int) -> None:
        partitions = [
            offset_commit.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset + index)
            for index in range(3)
        ]
        topics = [offset_commit.OffsetCommitRequestTopic(name="t", partitions=partitions)]
        answer = await client.ask("OffsetCommit", 8, group_id="readers", topics=topics)
        assert [topic.error_code for topic in answer.topics[0].partitions] == [0, 0, 0]

    async def has_coordinator() -> bool:
        answer = await client.ask("FindCoordinator", 3, key="readers", key_type=0)
        return bool(answer.error_code == 0)

    async def size() -> int:
        files = (data_dir / "__consumer_offsets-0").glob("*.log")
        return sum(path.stat().st_size for path in files)

    await wait_until(has_coordinator)
    for offset in range(3000):
        await commit(offset)

    async def is_small() -> bool:
        await commit(3000)
        return await size() < 60_000

    await wait_until(is_small)
    end = (await client.list_offset("__consumer_offsets", LATEST)).offset
    assert end > 9000
    assert len(await read(client, "__consumer_offsets")) < 2000
    await broker.stop()
    client = await connect_to(await start_broker(properties))
    asked = [offset_fetch.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1, 2])]

    async def is_loaded() -> bool:
        answer = await client.ask("OffsetFetch", 7, group_id="readers", topics=asked, require_stable=False)
        if answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return False
        assert [topic.committed_offset for topic in answer.topics[0].partitions] == [3000, 3001, 3002]
        return True

    await wait_until(is_loaded)


async def test_a_topic_that_is_deleted_and_made_again_while_it_is_compacted(
    start_broker: StartBroker, connect_to: Connect
) -> None:
    client = await connect_to(await start_broker(EAGER))
    for seed in range(5):
        await client.create_topic("table", cleanup_policy="compact", segment_bytes="3200")
        newest = await fill(client, "table", random.Random(seed), 60)
        found = {record.key: record.offset for record in await read(client, "table")}
        assert found == newest
        await client.delete_topic("table")
    await client.expect_service()


@pytest.mark.slow
async def test_kill_9_while_logs_are_compacted_loses_no_last_value(data_dir: Path) -> None:
    rng = random.Random(5)
    newest: dict[bytes, int] = {}
    settings = [argument for name, value in EAGER.items() for argument in ("--set", f"{name}={value}")]
    for number in range(6):
        async with child_broker(data_dir, *settings) as child, connect(child.port) as client:
            if number == 0:
                await client.create_topic("table", cleanup_policy="compact", segment_bytes="3200")
            found = await read(client, "table")
            assert {record.key: record.offset for record in found} | newest == {
                record.key: record.offset for record in found
            }
            newest |= await fill(client, "table", rng, rng.randint(50, 300))
            assert "Traceback" not in child.stderr
            await child.kill()
    async with child_broker(data_dir, *settings) as child, connect(child.port) as client:
        assert {record.key: record.offset for record in await read(client, "table")} == newest
