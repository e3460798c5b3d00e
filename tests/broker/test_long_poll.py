"""Fetches that wait: for bytes, for their time, for the end of their topic. The clock jumps, so no test sleeps."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages.fetch import ForgottenTopic
from kbroker.testing.running_broker import RunningBroker
from tests.broker.batches import make_batch
from tests.broker.conftest import Connect
from tests.broker.wire import Client, fetch_members, produce_members, records_of

pytestmark = pytest.mark.usefixtures("either_watcher")

JUMP_AFTER = 0.02  # seconds in which nothing happens; only set where no thread is at work
LONG_MS = 25_000  # below the patience of the wire client, which the clock carries along


class Timed:
    """A fetch under way, and when it was answered."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.seconds = -1.0

    async def run(self, client: Client, offsets: dict[Any, int], version: int = 11, **members: Any) -> None:
        began = trio.current_time()
        self.answer = await client.ask("Fetch", version, **fetch_members(offsets, **members))
        self.seconds = trio.current_time() - began

    @property
    def partition(self) -> Any:
        return partitions_of(self.answer)[0]


def partitions_of(response: Any) -> list[Any]:
    return [partition for topic in response.responses for partition in topic.partitions]


async def test_an_empty_fetch_waits_exactly_its_time(client: Client, mock_clock: trio.testing.MockClock) -> None:
    await client.create_topic("t")
    timed = Timed()
    mock_clock.autojump_threshold = JUMP_AFTER
    await timed.run(client, {("t", 0): 0}, max_wait_ms=7000)
    assert 7 <= timed.seconds < 8
    assert (timed.partition.error_code, bytes(timed.partition.records)) == (0, b"")
    await timed.run(client, {("t", 0): 0}, max_wait_ms=0)
    assert timed.seconds < 1


async def test_a_fetch_is_answered_as_soon_as_its_bytes_are_there(
    broker: RunningBroker, connect_to: Connect, client: Client
) -> None:
    await client.create_topic("t")
    consumer = await connect_to(broker)
    timed = Timed()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: timed.run(consumer, {("t", 0): 0}, max_wait_ms=LONG_MS))
            await trio.testing.wait_all_tasks_blocked(0.05)
            await client.produce("t", make_batch(b"v"))
    assert [record.value for record in records_of(timed.partition)] == [b"v"]


async def test_min_bytes_are_waited_for_across_partitions(
    broker: RunningBroker, connect_to: Connect, client: Client
) -> None:
    await client.create_topic("t", 2)
    consumer = await connect_to(broker)
    size = len(make_batch(bytes(100)))
    timed = Timed()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            offsets = {("t", 0): 0, ("t", 1): 0}
            nursery.start_soon(lambda: timed.run(consumer, offsets, max_wait_ms=LONG_MS, min_bytes=3 * size))
            for partition in (0, 1, 0):
                await trio.testing.wait_all_tasks_blocked(0.02)
                assert timed.answer is None
                await client.produce("t", make_batch(bytes(100)), partition=partition)
    assert sum(len(partition.records) for partition in partitions_of(timed.answer)) == 3 * size


async def test_min_bytes_are_found_also_when_a_run_of_frames_rolls_segments(
    broker: RunningBroker, connect_to: Connect, client: Client
) -> None:
    await client.create_topic("t", segment_bytes="1000")
    consumer = await connect_to(broker)
    batches = [make_batch(bytes(400)) for _ in range(7)]
    size = sum(map(len, batches))
    timed = Timed()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: timed.run(consumer, {("t", 0): 0}, max_wait_ms=LONG_MS, min_bytes=size))
            await trio.testing.wait_all_tasks_blocked(0.05)
            frames = [client.encode("Produce", 9, **produce_members("t", batch)) for batch in batches]
            await client.send_bytes(b"".join(frames))
            for _ in batches:
                await client.receive()
    assert records_of(timed.partition)


async def test_a_deleted_topic_wakes_whoever_waits_on_it(
    broker: RunningBroker, connect_to: Connect, client: Client
) -> None:
    topic_id = await client.create_topic("t")
    by_name, by_id = Timed(), Timed()
    first, second = await connect_to(broker), await connect_to(broker)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: by_name.run(first, {("t", 0): 0}, max_wait_ms=LONG_MS))
            nursery.start_soon(lambda: by_id.run(second, {(topic_id, 0): 0}, 13, max_wait_ms=LONG_MS))
            await trio.testing.wait_all_tasks_blocked(0.05)
            await client.delete_topic("t")
    assert by_name.partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert by_id.partition.error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_an_error_is_not_waited_with(client: Client, mock_clock: trio.testing.MockClock) -> None:
    await client.create_topic("t")
    timed = Timed()
    mock_clock.autojump_threshold = JUMP_AFTER
    await timed.run(client, {("t", 0): 0, ("missing", 0): 0}, max_wait_ms=LONG_MS)
    assert timed.seconds < 1
    assert partitions_of(timed.answer)[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_requests_behind_a_waiting_fetch_are_answered_after_it(
    client: Client, mock_clock: trio.testing.MockClock
) -> None:
    await client.create_topic("t")
    mock_clock.autojump_threshold = JUMP_AFTER
    await client.send("Fetch", 11, **fetch_members({("t", 0): 0}, max_wait_ms=3000))
    await client.send("ApiVersions", 0)
    began = trio.current_time()
    assert not partitions_of(await client.receive())[0].records
    assert trio.current_time() - began >= 3
    assert (await client.receive()).error_code == 0


async def test_at_least_one_batch_comes_however_large(client: Client) -> None:
    await client.create_topic("t", 2)
    for partition in (0, 1):
        for _ in range(2):
            await client.produce("t", make_batch(bytes(5000)), partition=partition)
    members = fetch_members({("t", 0): 0, ("t", 1): 0}, max_bytes=100, partition_max_bytes=100)
    first, second = partitions_of(await client.ask("Fetch", 11, **members))
    assert [record.offset for record in records_of(first)] == [0]
    assert not second.records
    # Before v3 a client got as many bytes as fit, and recognised a too large message by its partial bytes.
    assert not records_of(await client.fetch("t", 0, version=2, partition_max_bytes=100))


async def test_an_offset_in_the_middle_of_a_batch_gets_the_whole_batch(client: Client) -> None:
    await client.create_topic("t")
    for _ in range(3):
        await client.produce("t", make_batch(b"a", b"b", b"c"))
    answer = await client.fetch("t", 4)
    assert [record.offset for record in records_of(answer)] == [3, 4, 5, 6, 7, 8]
    assert [record.offset for record in await client.read_all("t", offset=7)] == [7, 8]


async def test_newer_versions_name_topics_by_id(client: Client) -> None:
    topic_id = await client.create_topic("t")
    await client.produce("t", make_batch(b"v"))
    for version in (13, 15, 17, 18):
        response = await client.ask("Fetch", version, **fetch_members({(topic_id, 0): 0, (b"\x01" * 16, 0): 0}))
        known, unknown = partitions_of(response)
        assert [record.value for record in records_of(known)] == [b"v"]
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_a_deleted_topic_that_comes_back_has_another_id_and_nothing_of_the_old(client: Client) -> None:
    old_id = await client.create_topic("t")
    await client.produce("t", make_batch(b"old"))
    await client.delete_topic("t")
    new_id = await client.create_topic("t")
    response = await client.ask("Fetch", 13, **fetch_members({(old_id, 0): 0, (new_id, 0): 0}))
    old, new = partitions_of(response)
    assert (old.error_code, new.error_code, new.high_watermark) == (ErrorCode.UNKNOWN_TOPIC_ID, 0, 0)
    assert await client.read_all("t") == []


# Sessions (KIP-227)


async def test_a_session_sends_only_changes(client: Client) -> None:
    await client.create_topic("t", 2)
    both: dict[Any, int] = {("t", 0): 0, ("t", 1): 0}
    full = await client.ask("Fetch", 11, **fetch_members(both, session_epoch=0))
    assert full.session_id != 0
    assert [partition.partition_index for partition in partitions_of(full)] == [0, 1]

    async def go_on(epoch: int, changed: dict[Any, int], **members: Any) -> Any:
        members = fetch_members(changed, session_id=full.session_id, session_epoch=epoch, **members)
        return await client.ask("Fetch", 11, **members)

    assert (await go_on(1, {})).responses == []
    await client.produce("t", make_batch(b"v"), partition=1)
    (grown,) = partitions_of(await go_on(2, {}))
    assert [record.value for record in records_of(grown)] == [b"v"]
    assert (await go_on(3, {("t", 1): 1})).responses == []
    forgotten = [ForgottenTopic(topic="t", partitions=[1])]
    assert (await go_on(4, {}, forgotten_topics_data=forgotten)).responses == []
    await client.produce("t", make_batch(b"v"), partition=1)
    await client.produce("t", make_batch(b"v"), partition=0)
    (grown,) = partitions_of(await go_on(5, {}))
    assert grown.partition_index == 0


async def test_a_session_out_of_step_is_told_so(client: Client) -> None:
    await client.create_topic("t")
    response = await client.ask("Fetch", 11, **fetch_members({("t", 0): 0}, session_epoch=0))
    session_id = response.session_id

    async def code_of(version: int, session_id: int, epoch: int) -> int:
        asked = fetch_members({}, session_id=session_id, session_epoch=epoch)
        return int((await client.ask("Fetch", version, **asked)).error_code)

    assert await code_of(11, session_id, 5) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert await code_of(11, session_id ^ 1, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert await code_of(13, session_id, 1) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert await code_of(11, session_id, 1) == 0
    # Epoch -1 ends it with one last full fetch.
    asked = fetch_members({("t", 0): 0}, session_id=session_id, session_epoch=-1)
    response = await client.ask("Fetch", 11, **asked)
    assert (response.session_id, len(response.responses)) == (0, 1)
    assert await code_of(11, session_id, 2) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_waiting_session_is_woken_with_just_the_partition_that_grew(
    broker: RunningBroker, connect_to: Connect, client: Client
) -> None:
    await client.create_topic("t", 3)
    consumer = await connect_to(broker)
    offsets: dict[Any, int] = {("t", index): 0 for index in range(3)}
    session_id = (await consumer.ask("Fetch", 11, **fetch_members(offsets, session_epoch=0))).session_id
    timed = Timed()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: timed.run(consumer, {}, max_wait_ms=LONG_MS, session_id=session_id, session_epoch=1)
            )
            await trio.testing.wait_all_tasks_blocked(0.05)
            await client.produce("t", make_batch(b"v"), partition=2)
    assert [partition.partition_index for partition in partitions_of(timed.answer)] == [2]
