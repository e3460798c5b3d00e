"""Producing and consuming against a broker of our own: what goes in comes out, once and in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.client.address import Address
from kbroker.client.cluster import Cluster, open_cluster
from kbroker.client.consuming import Consumer, committed_only
from kbroker.client.failures import BrokerRefusal, ConnectionFailed
from kbroker.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, NO_OFFSET, list_offsets
from kbroker.client.partitioning import partition_of_key
from kbroker.client.producing import NO_ACKS, Producer, Sent
from kbroker.client.topics import create_topic
from kbroker.errors import UserError
from kbroker.protocol.compression import Codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.records import EndTransactionMarker, Record, build_batch, build_end_transaction_batch
from kbroker.testing.running_broker import running_broker

TIME = 1_700_000_000_000


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with (
        running_broker(tmp_path / "data") as broker,
        open_cluster([Address(broker.host, broker.port)], retry_s=10) as cluster,
    ):
        yield cluster


async def read_all(cluster: Cluster, topic: str, count: int) -> dict[int, list[Record]]:
    ends = await list_offsets(cluster, topic, dict.fromkeys(range(count), LATEST))
    consumer = Consumer(cluster, topic, dict.fromkeys(range(count), 0))
    found: dict[int, list[Record]] = {number: [] for number in range(count)}
    while any(position < ends[number].offset for number, position in consumer.positions.items()):
        for fetched in await consumer.poll():
            found[fetched.partition] += fetched.records
    return found


async def start_producer(cluster: Cluster, topic: str, **options: Any) -> Producer:
    producer = Producer(cluster, topic, **options)
    await producer.start()
    return producer


@pytest.mark.parametrize("codec", list(Codec))
async def test_records_come_back_whole_and_in_order(cluster: Cluster, codec: Codec) -> None:
    await create_topic(cluster, "t", partitions=3)
    producer = await start_producer(cluster, "t", codec=codec)
    headers = (("a", b"b"), ("none", None))
    for number in range(300):
        producer.add(b"v%d" % number, key=b"k%d" % (number % 7), headers=headers, timestamp_ms=TIME + number)
    sent = await producer.flush()
    assert sum(each.record_count for each in sent) == 300
    found = await read_all(cluster, "t", 3)
    expected: dict[int, list[Record]] = {0: [], 1: [], 2: []}
    for number in range(300):
        key = b"k%d" % (number % 7)
        records = expected[partition_of_key(key, 3)]
        records.append(Record(len(records), TIME + number, key, b"v%d" % number, headers))
    assert found == expected


async def test_a_topic_is_created_by_the_first_record(cluster: Cluster) -> None:
    producer = await start_producer(cluster, "fresh")
    producer.add(None, key=b"k", timestamp_ms=TIME)
    assert await producer.flush() == [Sent(0, 0, 1)]
    assert await read_all(cluster, "fresh", 1) == {0: [Record(0, TIME, b"k", None)]}


async def test_records_without_a_key_stay_on_a_random_partition_for_a_batch(cluster: Cluster) -> None:
    await create_topic(cluster, "t", partitions=3)
    chosen = [2, 0, 1, 0]
    asked: list[int] = []

    def random_below(count: int) -> int:
        asked.append(count)
        return chosen[len(asked) - 1]

    producer = await start_producer(cluster, "t", random_below=random_below)
    for _ in range(3):
        producer.add(b"a", timestamp_ms=TIME)
        producer.add(b"b", timestamp_ms=TIME)
        await producer.flush()
    assert (producer.counts, asked) == ({2: 2, 0: 2, 1: 2}, [3, 3, 3, 3])


async def test_records_without_a_key_change_the_partition_after_16_kb(cluster: Cluster) -> None:
    """Follows Kafka's producer and its default batch.size. Records with a key or a partition do not count."""
    await create_topic(cluster, "t", partitions=3)
    chosen = iter([2, 0, 1])
    producer = await start_producer(cluster, "t", random_below=lambda count: next(chosen))
    producer.add(bytes(60_000), key=b"k", timestamp_ms=TIME)
    producer.add(bytes(60_000), partition=1, timestamp_ms=TIME)
    others = {partition_of_key(b"k", 3): 1}
    others[1] = others.get(1, 0) + 1
    for _ in range(20):  # 16 of them have 16 KiB together
        producer.add(bytes(1000), timestamp_ms=TIME)
    await producer.flush()
    assert {index: producer.counts[index] - others.get(index, 0) for index in (0, 2)} == {2: 16, 0: 4}


async def test_a_batch_that_is_sent_again_is_stored_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its acknowledgement is lost on the way: the connection ends behind the answer."""
    await create_topic(cluster, "t", partitions=1)
    producer = await start_producer(cluster, "t")
    send = producer._send_to_leader
    attempts = []

    async def lose_the_first_answer(*arguments: Any) -> Any:
        answers = await send(*arguments)
        attempts.append(answers)
        if len(attempts) == 1:
            raise ConnectionFailed(None, "lost")
        return answers

    monkeypatch.setattr(producer, "_send_to_leader", lose_the_first_answer)
    producer.add(b"once", timestamp_ms=TIME)
    assert await producer.flush() == [Sent(0, 0, 1)]
    assert len(attempts) == 2
    assert await read_all(cluster, "t", 1) == {0: [Record(0, TIME, None, b"once")]}


async def test_without_acks_nobody_says_where_a_record_is(cluster: Cluster) -> None:
    await create_topic(cluster, "t", partitions=1)
    producer = await start_producer(cluster, "t", acks=NO_ACKS)
    producer.add(b"a", timestamp_ms=TIME)
    assert await producer.flush() == [Sent(0, -1, 1)]
    assert await read_all(cluster, "t", 1) == {0: [Record(0, TIME, None, b"a")]}


async def test_a_full_batch_asks_for_a_flush(cluster: Cluster) -> None:
    await create_topic(cluster, "t", partitions=1)
    producer = await start_producer(cluster, "t", batch_bytes=1000)
    assert not producer.add(bytes(400), timestamp_ms=TIME)
    assert not producer.add(bytes(400), timestamp_ms=TIME)
    assert producer.add(bytes(400), timestamp_ms=TIME)


async def test_a_record_above_the_topics_bound_is_refused_in_one_line(cluster: Cluster) -> None:
    await create_topic(cluster, "t", partitions=1, configs={"max.message.bytes": "1000"})
    producer = await start_producer(cluster, "t")
    producer.add(bytes(2000), timestamp_ms=TIME)
    with pytest.raises(BrokerRefusal) as refused:
        await producer.flush()
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert "\n" not in str(refused.value)


async def test_a_given_partition_must_exist(cluster: Cluster) -> None:
    await create_topic(cluster, "t", partitions=1)
    producer = await start_producer(cluster, "t")
    producer.add(b"a", partition=3, timestamp_ms=TIME)
    with pytest.raises(UserError, match="partition 3 does not exist"):
        await producer.flush()


async def test_offsets_are_found_by_what_they_stand_for(cluster: Cluster) -> None:
    await create_topic(cluster, "t", partitions=1)
    producer = await start_producer(cluster, "t")
    for number in range(10):
        producer.add(b"v", timestamp_ms=TIME + 10 * number)
    await producer.flush()

    async def find(timestamp: int) -> int:
        return (await list_offsets(cluster, "t", {0: timestamp}))[0].offset

    assert [await find(each) for each in (EARLIEST, LATEST, MAX_TIMESTAMP, TIME + 41)] == [0, 10, 9, 5]
    assert await find(TIME + 1000) == NO_OFFSET


async def test_reading_starts_in_the_middle_of_a_batch(cluster: Cluster) -> None:
    await create_topic(cluster, "t", partitions=1)
    producer = await start_producer(cluster, "t")
    for number in range(10):
        producer.add(b"%d" % number, timestamp_ms=TIME)
    await producer.flush()
    consumer = Consumer(cluster, "t", {0: 7})
    (fetched,) = await consumer.poll()
    assert [each.value for each in fetched.records] == [b"7", b"8", b"9"]
    assert consumer.positions == {0: 10}


async def test_a_batch_above_the_fetch_size_is_read_all_the_same(cluster: Cluster) -> None:
    await create_topic(cluster, "t", partitions=1)
    producer = await start_producer(cluster, "t")
    producer.add(bytes(100_000), timestamp_ms=TIME)
    await producer.flush()
    consumer = Consumer(cluster, "t", {0: 0}, partition_bytes=100)
    (fetched,) = await consumer.poll()
    assert fetched.next_offset == 1


async def test_an_offset_out_of_range_is_told(cluster: Cluster) -> None:
    await create_topic(cluster, "t", partitions=1)
    with pytest.raises(BrokerRefusal) as refused:
        await Consumer(cluster, "t", {0: 99}).poll()
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def transactional(producer_id: int, offset: int) -> bytes:
    record = Record(offset, TIME, None, b"v")
    return bytes(
        build_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)
    )


def marker(producer_id: int, offset: int, *, is_commit: bool) -> bytes:
    ended = EndTransactionMarker(is_commit, coordinator_epoch=0)
    batch = build_end_transaction_batch(
        ended, producer_id=producer_id, producer_epoch=0, timestamp=TIME, base_offset=offset
    )
    return bytes(batch)


def test_what_aborted_transactions_wrote_is_left_out() -> None:
    """Producer 1 aborts and then commits; producer 2 commits in between; producer 3 knows no transactions."""
    plain = bytes(build_batch([Record(2, TIME, None, b"v")]))
    data = b"".join(
        [
            transactional(1, 0),
            transactional(2, 1),
            plain,
            marker(1, 3, is_commit=False),
            marker(2, 4, is_commit=True),
            transactional(1, 5),
            marker(1, 6, is_commit=True),
        ]
    )
    kept = [header.base_offset for _position, header in committed_only(data, [(1, 0)])]
    assert kept == [1, 2, 5]
