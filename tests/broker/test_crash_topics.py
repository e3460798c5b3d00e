"""kill -9 while topics are created and deleted and old segments are deleted: every answer still holds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.records import Record
from tests.broker.batches import make_batch
from tests.broker.child import child_broker
from tests.broker.history import GONE
from tests.broker.wire import Client, connect, records_of

pytestmark = pytest.mark.slow

NO_AUTO_CREATE = "--set=auto.create.topics.enable=false"


class Topics:
    """Answers that clients got: names of existing topics with their one record, and names of deleted topics."""

    def __init__(self, rng: random.Random) -> None:
        self.there: dict[str, tuple[bytes, bytes]] = {}
        self.gone: set[str] = set()
        self._rng = rng
        self._next = 0

    async def come_and_go(self, port: int) -> None:
        try:
            async with connect(port) as client:
                while True:
                    await self._turn(client)
        except GONE:
            return

    async def _turn(self, client: Client) -> None:
        if self.there and self._rng.random() < 0.4:
            name = self._rng.choice(sorted(self.there))
            del self.there[name]  # unknown until the request is answered
            await client.delete_topic(name)
            self.gone.add(name)
            return
        if self.gone and self._rng.random() < 0.5:
            name = self.gone.pop()  # the same name again, as another topic
        else:
            self._next += 1
            name = f"topic{self._next}"
        topic_id = await client.create_topic(name)
        value = b"%s in %s" % (name.encode(), topic_id.hex().encode())
        assert (await client.produce(name, make_batch(value))).base_offset == 0
        self.there[name] = (topic_id, value)

    async def check(self, client: Client) -> None:
        for name, (topic_id, value) in self.there.items():
            found = await client.topic_metadata(name)
            assert (name, found.error_code, found.topic_id) == (name, 0, topic_id)
            assert [record.value for record in await client.read_all(name)] == [value]
            assert (await client.produce(name, make_batch(b"again"))).base_offset == 1
        for name in self.gone:
            found = await client.topic_metadata(name)
            assert (name, found.error_code) == (name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


async def test_topics_that_come_and_go_survive_crashes_as_they_were_answered(data_dir: Path) -> None:
    rng = random.Random(7)
    topics = Topics(rng)
    for _ in range(3):
        async with child_broker(data_dir, NO_AUTO_CREATE) as child:
            async with connect(child.port) as client:
                await topics.check(client)
                topics.there.clear()  # they hold one record more now
            async with trio.open_nursery() as nursery:
                nursery.start_soon(topics.come_and_go, child.port)
                enough = len(topics.there) + rng.randint(5, 20)
                with trio.fail_after(60):
                    async with connect(child.port) as client:
                        while len(topics.there) < enough:
                            await client.expect_service()
                await child.kill()
    async with child_broker(data_dir, NO_AUTO_CREATE) as child, connect(child.port) as client:
        await topics.check(client)
        assert topics.there
        assert topics.gone


async def test_a_crash_while_segments_are_deleted_leaves_a_whole_log(data_dir: Path) -> None:
    settings = (
        "--set=log.segment.bytes=2000",
        "--set=log.retention.bytes=6000",
        "--set=log.retention.check.interval.ms=5",
        "--set=log.flush.offset.checkpoint.interval.ms=10",
        "--set=log.segment.delete.delay.ms=0",
    )
    rng = random.Random(9)
    sent, start = 0, 0
    for _ in range(3):
        async with child_broker(data_dir, *settings) as child:
            async with connect(child.port) as client:
                if not sent:
                    await client.create_topic("t")
                start = await expect_whole(client, start, sent)
                wanted = start + rng.randint(20, 60)
                with trio.fail_after(60):
                    while (await client.list_offset("t", -2)).offset < wanted:
                        batch = make_batch((b"%d" % sent).ljust(200, b"."))
                        assert (await client.produce("t", batch)).base_offset == sent
                        sent += 1
            await child.kill()
    async with child_broker(data_dir, *settings) as child, connect(child.port) as client:
        assert await expect_whole(client, start, sent) > start


async def expect_whole(client: Client, start: int, end: int) -> int:
    """The log's start, which never goes back; from there on every record."""
    records = None
    while records is None:
        found = (await client.list_offset("t", -2)).offset
        assert start <= found <= end
        records = await read_unless_deleted(client, found, end)
    assert [int((record.value or b"").rstrip(b".")) for record in records] == list(range(found, end))
    return int(found)


async def read_unless_deleted(client: Client, offset: int, end: int) -> list[Record] | None:
    """None if retention took the segment away that we were about to read."""
    records: list[Record] = []
    while offset < end:
        answer = await client.fetch("t", offset)
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        assert answer.error_code == 0
        records += [record for record in records_of(answer) if record.offset >= offset]
        offset = records[-1].offset + 1
    return records
