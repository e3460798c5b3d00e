"""Producers and a consumer that record the answers they got, and the check that a log keeps all of it.

lost          an acknowledged record, or one that a consumer has seen, is not at its offset any more
duplicated    the log has a value twice
out of order  the values of one producer do not rise
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import trio

from kbroker.protocol.compression import Codec
from tests.broker.batches import make_batch
from tests.broker.wire import Client, connect, fetch_members, produce_members, records_of

__all__ = ["History", "IdempotentProducer", "PlainProducer", "consume"]

GONE = (EOFError, trio.BrokenResourceError, OSError)
Partition = tuple[str, int]


class History:
    """Answers that clients got, over all starts of the broker."""

    def __init__(self) -> None:
        self.known: dict[Partition, dict[int, bytes]] = defaultdict(dict)
        self.count = 0
        self._on_count: list[tuple[int, trio.Event]] = []

    def learn(self, partition: Partition, offset: int, value: bytes) -> None:
        before = self.known[partition].setdefault(offset, value)
        assert before == value, f"{partition} had {before!r} at {offset}, and now {value!r}"

    def acknowledge(self, partition: Partition, base_offset: int, values: list[bytes]) -> None:
        for number, value in enumerate(values):
            self.learn(partition, base_offset + number, value)
        self.count += 1
        while self._on_count and self._on_count[0][0] <= self.count:
            self._on_count.pop(0)[1].set()

    async def wait_acknowledged(self, more: int) -> None:
        reached = trio.Event()
        self._on_count.append((self.count + more, reached))
        await reached.wait()

    async def check(self, client: Client) -> int:
        """Compares the history with the logs of the broker. Returns the number of records."""
        total = 0
        for partition, known in self.known.items():
            records = await client.read_all(partition[0], partition=partition[1])
            values = [record.value or b"" for record in records]
            assert [record.offset for record in records] == list(range(len(records))), f"{partition} has holes"
            lost = {offset: value for offset, value in known.items() if values[offset : offset + 1] != [value]}
            assert not lost, f"{partition} lost {len(lost)} of {len(known)} records: {sorted(lost.items())[:5]}"
            assert len(set(values)) == len(values), f"{partition} has records twice"
            for offset, value in enumerate(values):
                known[offset] = value
            _check_order(partition, values)
            total += len(values)
        return total


def _check_order(partition: Partition, values: list[bytes]) -> None:
    last: dict[bytes, int] = {}
    for value in values:
        name, number = value.split(b":")[:2]
        assert last.get(name, -1) < int(number), f"{partition}: {value!r} follows {last[name]}"
        last[name] = int(number)


class _Producer:
    def __init__(self, name: str, partition: Partition, history: History, rng: random.Random) -> None:
        self._name = name
        self._partition = partition
        self._history = history
        self._rng = rng
        self._next = 0

    async def run(self, port: int) -> None:
        """Runs until the broker is killed."""
        try:
            async with connect(port) as client:
                await self._begin(client)
                while True:
                    await self._turn(client)
        except GONE:
            return

    async def _begin(self, client: Client) -> None:
        pass

    async def _turn(self, client: Client) -> None:
        raise NotImplementedError

    def _values(self) -> list[bytes]:
        values = []
        for _ in range(self._rng.randint(1, 4)):
            values.append(b"%s:%d:%s" % (self._name.encode(), self._next, b"x" * self._rng.randint(0, 200)))
            self._next += 1
        return values

    def _codec(self) -> int:
        return self._rng.choice([Codec.NONE, Codec.NONE, Codec.LZ4])


class PlainProducer(_Producer):
    """Five requests in flight; a batch that is not acknowledged is never sent again."""

    async def _turn(self, client: Client) -> None:
        topic, index = self._partition
        sent = [self._values() for _ in range(5)]
        frames = [
            client.encode(
                "Produce",
                9,
                **produce_members(topic, make_batch(*values, codec=self._codec()), partition=index, acks=1),
            )
            for values in sent
        ]
        await client.send_bytes(b"".join(frames))
        for values in sent:
            answer = (await client.receive()).responses[0].partition_responses[0]
            assert answer.error_code == 0, answer
            self._history.acknowledge(self._partition, answer.base_offset, values)


class IdempotentProducer(_Producer):
    """One request in flight, sent again under its old sequence until it is acknowledged."""

    def __init__(self, name: str, partition: Partition, history: History, rng: random.Random) -> None:
        super().__init__(name, partition, history, rng)
        self._producer_id = -1
        self._sequence = 0
        self._unacknowledged: list[bytes] = []

    async def _begin(self, client: Client) -> None:
        if self._producer_id < 0:
            self._producer_id = await client.new_producer_id()

    @property
    def has_begun(self) -> bool:
        return self._producer_id >= 0

    async def finish(self, client: Client) -> None:
        """Returns the requests that were in flight when the broker was killed."""
        if self._unacknowledged:
            await self._turn(client)

    async def _turn(self, client: Client) -> None:
        values = self._unacknowledged = self._unacknowledged or self._values()
        topic, index = self._partition
        batch = make_batch(
            *values, producer_id=self._producer_id, sequence=self._sequence, codec=self._codec(), timestamp=1_000_000
        )
        answer = await client.produce(topic, batch, partition=index)
        assert answer.error_code == 0, answer
        self._history.acknowledge(self._partition, answer.base_offset, values)
        self._sequence += len(values)
        self._unacknowledged = []


async def consume(port: int, partitions: list[Partition], history: History) -> None:
    """Reads while producers write: a record that was visible once must stay."""
    offsets: dict[Any, int] = dict.fromkeys(partitions, 0)
    try:
        async with connect(port) as client:
            while True:
                response = await client.ask("Fetch", 11, **fetch_members(offsets, max_wait_ms=100))
                for topic in response.responses:
                    for answer in topic.partitions:
                        key = (topic.topic, answer.partition_index)
                        assert answer.error_code == 0, answer
                        for record in records_of(answer):
                            if record.offset >= offsets[key]:
                                assert record.offset == offsets[key], f"{key} skips to {record.offset}"
                                history.learn(key, record.offset, record.value or b"")
                                offsets[key] = record.offset + 1
    except GONE:
        return
