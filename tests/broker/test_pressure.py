"""Clients that ask for too much at once: memory stays bounded, everything is answered in order, others are served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import offset_fetch
from kbroker.server.coordinators.group_requests import find_shard
from kbroker.server.requests import large_messages
from kbroker.testing.running_broker import RunningBroker
from kbroker.time_slice import turn_of_loop
from tests.broker.batches import make_batch
from tests.broker.conftest import Connect, StartBroker
from tests.broker.wire import Client, connect, encode_request, fetch_members, produce_members, records_of

pytestmark = pytest.mark.usefixtures("either_watcher")

MB = 1024 * 1024


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


async def test_ten_thousand_pipelined_requests_are_all_answered_in_order(client: Client) -> None:
    await client.create_topic("t")
    requests = []
    for number in range(10_000):
        match number % 4:
            case 0 | 1:
                members = produce_members("t", make_batch(b"%d" % number))
                requests.append(client.encode("Produce", 9, **members))
            case 2:
                requests.append(client.encode("ApiVersions", 0))
            case _:
                requests.append(client.encode("Metadata", 1, topics=[]))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send_bytes, b"".join(requests))
        offsets = []
        for _ in range(10_000):
            response = await client.receive()  # checks the order by the correlation ids
            if hasattr(response, "responses"):
                offsets.append(response.responses[0].partition_responses[0].base_offset)
    assert offsets == list(range(5000))


@pytest.mark.parametrize("version", [11, 3], ids=["answers from files", "answers in memory"])
async def test_a_client_that_never_reads_is_held_back_and_others_are_served(
    broker: RunningBroker, connect_to: Connect, client: Client, version: int
) -> None:
    await client.create_topic("t")
    await client.produce("t", make_batch(bytes(900_000)))
    deaf = await connect_to(broker)
    turn = encode_request("Fetch", version, 1, **fetch_members({("t", 0): 0})) * 1000
    before = resident_bytes()
    # The kernel holds some megabytes between us; the responses would be hundreds of gigabytes.
    with trio.CancelScope() as until_blocked:
        for _ in range(32 * MB // len(turn)):
            until_blocked.deadline = trio.current_time() + 1
            await deaf.send_bytes(turn)
    assert until_blocked.cancelled_caught, "the broker reads on although its responses are not read"
    assert resident_bytes() - before < 64 * MB
    for _ in range(3):
        assert (await client.produce("t", make_batch(b"v"))).error_code == 0
    assert len(records_of(await client.fetch("t", 0))) == 4


async def test_frames_wait_for_memory_when_the_budget_is_used_up(
    start_broker: StartBroker, connect_to: Connect
) -> None:
    broker = await start_broker({"queued.max.request.bytes": str(2 * MB), "message.max.bytes": str(2 * MB)})
    admin = await connect_to(broker)
    await admin.create_topic("t", 8)
    async with trio.open_nursery() as nursery:
        for partition in range(8):
            nursery.start_soon(produce_large, await connect_to(broker), partition)
    for partition in range(8):
        assert len(await admin.read_all("t", partition=partition)) == 4


async def produce_large(client: Client, partition: int) -> None:
    for _ in range(4):
        assert (await client.produce("t", make_batch(bytes(MB)), partition=partition)).error_code == 0


async def test_hundreds_of_connections_at_once_are_all_served(broker: RunningBroker, client: Client) -> None:
    await client.create_topic("t", 4)
    arrived = 0
    all_connected = trio.Event()

    async def come_and_produce(number: int) -> None:
        nonlocal arrived
        async with connect(broker.port) as one:
            await one.expect_service()
            arrived += 1
            if arrived == 300:
                all_connected.set()
            await all_connected.wait()
            assert (await one.produce("t", make_batch(b"%d" % number), partition=number % 4)).error_code == 0

    async with trio.open_nursery() as nursery:
        for number in range(300):
            nursery.start_soon(come_and_produce, number)
    values = [record.value for index in range(4) for record in await client.read_all("t", partition=index)]
    assert sorted(int(value or b"") for value in values) == list(range(300))


async def test_a_client_that_leaves_with_answers_due_leaves_nothing_behind(
    broker: RunningBroker, client: Client
) -> None:
    await client.create_topic("t")
    await client.produce("t", make_batch(bytes(500_000)))
    for _ in range(20):
        async with connect(broker.port) as rude:
            for _ in range(20):
                await rude.send("Fetch", 11, **fetch_members({("t", 0): 0}))
            await rude.send("Fetch", 11, **fetch_members({("t", 0): 1}, max_wait_ms=30_000))
    assert (await client.produce("t", make_batch(b"after"))).error_code == 0
    await client.delete_topic("t")
    await client.expect_service()


async def test_an_answer_on_its_way_is_whole_although_its_topic_is_deleted(
    broker: RunningBroker, connect_to: Connect, client: Client, data_dir: Path
) -> None:
    await client.create_topic("t")
    for number in range(30):
        await client.produce("t", make_batch(b"%02d" % number + bytes(900_000)))
    slow = await connect_to(broker)
    await slow.send("Fetch", 11, **fetch_members({("t", 0): 0}))
    assert (await client.fetch("t", 0)).error_code == 0
    await client.delete_topic("t")
    await client.create_topic("t")
    await client.produce("t", make_batch(b"another"))
    answer = (await slow.receive()).responses[0].partitions[0]
    assert [int((record.value or b"")[:2]) for record in records_of(answer)] == list(range(30))
    with trio.fail_after(20):
        while has_deleted_directory(data_dir):
            await client.expect_service()


def has_deleted_directory(data_dir: Path) -> bool:
    return any(path.name.endswith("-delete") for path in data_dir.iterdir())


async def test_many_clients_that_create_one_topic_at_once_create_it_once(
    broker: RunningBroker, connect_to: Connect
) -> None:
    clients = [await connect_to(broker) for _ in range(10)]
    codes: list[int] = []
    names: list[str] = []

    async def create(one: Client) -> None:
        codes.append((await one.try_create_topic("made")).error_code)
        await one.topic_metadata("found", auto_create=True)
        names.append((await one.topic_metadata("found")).topic_id.hex())

    async with trio.open_nursery() as nursery:
        for one in clients:
            nursery.start_soon(create, one)
    assert sorted(codes) == [0] + [ErrorCode.TOPIC_ALREADY_EXISTS] * 9
    assert len(set(names)) == 1
    for name in ("made", "found"):
        assert (await clients[0].produce(name, make_batch(b"v"))).base_offset == 0


async def test_a_large_request_ends_when_its_client_is_killed(
    client: Client, broker: RunningBroker, connect_to: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/hostile counts the slices of each API. Here the kernel says that the client has left."""
    count = 50_000
    looked_up = 0
    begun, freed = trio.Event(), trio.Event()
    free_lists = large_messages._free_lists

    def count_lookups(*arguments: Any) -> Any:
        nonlocal looked_up
        looked_up += 1
        begun.set()
        return find_shard(*arguments)

    def note_free(*arguments: Any, **named: Any) -> None:
        trio.from_thread.run_sync(freed.set)
        free_lists(*arguments, **named)

    monkeypatch.setattr("kbroker.server.handlers.offset_fetch.find_shard", count_lookups)
    monkeypatch.setattr(large_messages, "_free_lists", note_free)
    killed = await connect_to(broker)
    groups = [offset_fetch.OffsetFetchRequestGroup(group_id=f"g{number}", topics=[]) for number in range(count)]
    with trio.fail_after(60):
        async with turn_of_loop():  # the second slice waits for it
            await killed.send("OffsetFetch", 9, groups=groups)
            await begun.wait()
            await killed.stream.aclose()
        await freed.wait()
    assert looked_up < count
    await client.expect_service()
