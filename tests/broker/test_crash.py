"""kill -9 at any moment under load: every record that was acknowledged or visible is in the log, in order, once."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
import trio

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import iter_headers
from tests.broker.batches import make_batch
from tests.broker.child import ChildBroker, child_broker, spawn
from tests.broker.history import History, IdempotentProducer, PlainProducer, consume
from tests.broker.wire import Client, connect, fetch_members, records_of

SMALL_FILES = (
    "--set=log.segment.bytes=3000",
    "--set=log.index.interval.bytes=200",
    "--set=log.flush.offset.checkpoint.interval.ms=40",
)
PLAIN = [("plain", 0), ("plain", 1), ("flushed", 0)]
IDEMPOTENT = [("idempotent", 0), ("idempotent", 1), ("durable", 0)]


class Load:
    """Two producers for each partition, and one consumer."""

    def __init__(self, rng: random.Random) -> None:
        self.history = History()
        self.plain = [
            PlainProducer(f"p{number}", partition, self.history, rng) for number, partition in enumerate(2 * PLAIN)
        ]
        self.idempotent = [
            IdempotentProducer(f"i{number}", partition, self.history, rng)
            for number, partition in enumerate(2 * IDEMPOTENT)
        ]

    async def run_until(self, child: ChildBroker, acknowledged: int, end: str) -> int:
        """Ends the broker after so many acknowledgements; its exit code."""
        async with trio.open_nursery() as nursery:
            for producer in (*self.plain, *self.idempotent):
                nursery.start_soon(producer.run, child.port)
            nursery.start_soon(consume, child.port, [*PLAIN, *IDEMPOTENT], self.history)
            with trio.fail_after(60):
                await self.history.wait_acknowledged(acknowledged)
                # On a slow machine some have not begun yet, and a broker that stops gives them no producer id.
                while not all(producer.has_begun for producer in self.idempotent):
                    await trio.lowlevel.checkpoint()
            if end == "kill":
                await child.kill()
            else:
                return await child.terminate()
        return -9

    async def check(self, child: ChildBroker) -> int:
        async with connect(child.port) as client:
            for producer in self.idempotent:
                await producer.finish(client)
            return await self.history.check(client)


async def create_topics(client: Client) -> None:
    await client.create_topic("plain", 2)
    await client.create_topic("idempotent", 2)
    await client.create_topic("flushed", flush_messages="10")
    await client.create_topic("durable", flush_messages="1")


async def crash_again_and_again(data_dir: Path, *, seed: int, rounds: int, longest: int) -> None:
    rng = random.Random(seed)
    load = Load(rng)
    for number in range(rounds):
        if number and rng.random() < 0.3:
            await die_while_starting(data_dir, rng)
        async with child_broker(data_dir, *SMALL_FILES) as child:
            if number == 0:
                async with connect(child.port) as client:
                    await create_topics(client)
            else:
                await load.check(child)
            await load.run_until(child, rng.randint(1, longest), "kill")
    async with child_broker(data_dir, *SMALL_FILES) as child:
        assert await load.check(child) > 0


async def die_while_starting(data_dir: Path, rng: random.Random) -> None:
    """A crash while it recovers from the last one."""
    child = await spawn(data_dir, *SMALL_FILES)
    with trio.move_on_after(rng.uniform(0.1, 0.6)):
        await child.wait_ready()
    await child.kill()


async def test_a_few_crashes_lose_nothing(data_dir: Path) -> None:
    await crash_again_and_again(data_dir, seed=1, rounds=3, longest=400)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4])
async def test_many_crashes_lose_nothing(data_dir: Path, seed: int) -> None:
    await crash_again_and_again(data_dir, seed=seed, rounds=10, longest=1500)


async def test_sigterm_under_load_is_a_clean_stop(data_dir: Path) -> None:
    load = Load(random.Random(5))
    async with child_broker(data_dir, *SMALL_FILES) as child:
        async with connect(child.port) as client:
            await create_topics(client)
        assert await load.run_until(child, 200, "terminate") == 0
        assert "Traceback" not in child.stderr
    assert (data_dir / ".kafka_cleanshutdown").exists()
    async with child_broker(data_dir, *SMALL_FILES) as child:
        assert await load.check(child) > 0
        assert "recovering" not in child.stderr
        assert not (data_dir / ".kafka_cleanshutdown").exists()


# Recovery of damaged files


async def fill(data_dir: Path, values: list[bytes], *, clean: bool) -> None:
    async with child_broker(data_dir) as child:
        async with connect(child.port) as client:
            await client.create_topic("t")
            await client.create_topic("other")
            for value in values:
                assert (await client.produce("t", make_batch(value))).error_code == 0
            assert (await client.produce("other", make_batch(b"untouched"))).error_code == 0
        if clean:
            assert await child.terminate() == 0


def log_file(data_dir: Path, topic: str = "t") -> Path:
    return data_dir / f"{topic}-0" / "00000000000000000000.log"


def positions(data: bytes | bytearray) -> list[int]:
    return [position for position, _ in iter_headers(data)]


async def test_a_bit_that_flips_below_the_recovery_point_is_seen_by_the_client(data_dir: Path) -> None:
    await fill(data_dir, [b"first", b"second", b"third"], clean=True)
    damaged = bytearray(log_file(data_dir).read_bytes())
    starts = positions(damaged)
    damaged[starts[2] - 3] ^= 0x10  # in the body of the second
    log_file(data_dir).write_bytes(damaged)
    async with child_broker(data_dir) as child, connect(child.port) as client:
        answer = await client.fetch("t", 0)
        assert answer.error_code == 0
        data = bytes(answer.records)
        # As stored: a client checks the CRC and sees it; the others are whole.
        assert data == bytes(damaged)
        assert [record.value for record in await client.read_all("other")] == [b"untouched"]
        assert (await client.produce("t", make_batch(b"fourth"))).base_offset == 3
        assert [record.value for record in records_of(await client.fetch("t", 2))] == [b"third", b"fourth"]


async def test_a_flipped_bit_in_the_scanned_part_keeps_the_valid_prefix(data_dir: Path) -> None:
    await fill(data_dir, [b"first", b"second", b"third"], clean=False)
    damaged = bytearray(log_file(data_dir).read_bytes())
    damaged[positions(damaged)[2] - 3] ^= 0x10
    log_file(data_dir).write_bytes(damaged)
    async with child_broker(data_dir) as child, connect(child.port) as client:
        assert [record.value for record in await client.read_all("t")] == [b"first"]
        assert [record.value for record in await client.read_all("other")] == [b"untouched"]
        partition = (await client.topic_metadata("t")).partitions[0]
        assert partition.leader_epoch == 1, "a log that was cut begins a new epoch before it serves"
        assert (await client.produce("t", make_batch(b"new"))).base_offset == 1
        data = bytes((await client.fetch("t", 0)).records)
        assert [(header.base_offset, header.leader_epoch) for _, header in iter_headers(data)] == [(0, 0), (1, 1)]
        # A client that had read all three gets the diverging epoch, and does not take the new record for the old one.
        for offset in (2, 3):
            members = fetch_members({("t", 0): offset})
            members["topics"][0].partitions[0].last_fetched_epoch = 0
            answer = (await client.ask("Fetch", 12, **members)).responses[0].partitions[0]
            assert (answer.error_code, answer.records) == (0, b"")
            assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (0, 1)


async def test_a_log_that_lost_a_whole_batch_begins_a_new_epoch_too(data_dir: Path) -> None:
    """The files do not show that the log is shorter, and a second crash may precede the store of the new epoch."""
    await fill(data_dir, [b"first", b"second"], clean=False)
    whole = log_file(data_dir).read_bytes()
    log_file(data_dir).write_bytes(whole[: positions(whole)[1]])
    async with child_broker(data_dir) as child, connect(child.port) as client:
        assert [record.value for record in await client.read_all("t")] == [b"first"]
        assert (await client.topic_metadata("t")).partitions[0].leader_epoch == 1


async def test_a_torn_end_is_cut_off(data_dir: Path) -> None:
    batch = make_batch(bytes(500))
    struct.pack_into(">q", batch, 0, 2)
    torn = {"half-a-batch": bytes(batch[:300]), "zeros": bytes(4096), "garbage": random.Random(1).randbytes(999)}
    async with child_broker(data_dir) as child, connect(child.port) as client:
        for topic in torn:
            await client.create_topic(topic)
            for value in (b"first", b"second"):
                assert (await client.produce(topic, make_batch(value))).error_code == 0
    sizes = {}
    for topic, tail in torn.items():
        whole = log_file(data_dir, topic).read_bytes()
        sizes[topic] = len(whole)
        log_file(data_dir, topic).write_bytes(whole + tail)
    async with child_broker(data_dir) as child, connect(child.port) as client:
        for topic in torn:
            assert [record.value for record in await client.read_all(topic)] == [b"first", b"second"]
            assert log_file(data_dir, topic).stat().st_size == sizes[topic]
            assert (await client.produce(topic, make_batch(b"third"))).base_offset == 2


async def test_a_crash_keeps_sequences(data_dir: Path) -> None:
    async with child_broker(data_dir, *SMALL_FILES) as child:
        async with connect(child.port) as client:
            await client.create_topic("t")
            producer_id = await client.new_producer_id()
            for number in range(30):
                batch = make_batch(bytes(300), producer_id=producer_id, sequence=number)
                assert (await client.produce("t", batch)).base_offset == number
        await child.kill()
    async with child_broker(data_dir, *SMALL_FILES) as child, connect(child.port) as client:
        answers = {}
        for number in (29, 31, 30, 5):
            answers[number] = await client.produce(
                "t", make_batch(bytes(300), producer_id=producer_id, sequence=number)
            )
        out_of_order = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert [answer.error_code for answer in answers.values()] == [0, out_of_order, 0, out_of_order]
        assert (answers[29].base_offset, answers[30].base_offset) == (29, 30)
        assert await client.new_producer_id() > producer_id


async def test_files_of_indexes_that_are_damaged_are_built_anew(data_dir: Path) -> None:
    async with child_broker(data_dir, *SMALL_FILES) as child:
        async with connect(child.port) as client:
            await client.create_topic("t")
            for number in range(30):
                await client.produce("t", make_batch(b"%d".ljust(300) % number, timestamp=1000 + number))
        await child.kill()
    for path in (data_dir / "t-0").iterdir():
        if path.suffix in (".index", ".timeindex", ".snapshot"):
            path.write_bytes(random.Random(1).randbytes(path.stat().st_size or 20))
    async with child_broker(data_dir, *SMALL_FILES) as child, connect(child.port) as client:
        records = await client.read_all("t")
        assert [int(record.value or b"") for record in records] == list(range(30))
        for number in (0, 7, 29):
            found = await client.list_offset("t", 1000 + number)
            assert (found.offset, found.timestamp) == (number, 1000 + number)
