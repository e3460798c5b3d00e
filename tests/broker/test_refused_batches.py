"""Real clients whose batches are refused now and then: every record is in the log once and in order.

librdkafka writes records twice if a later batch in flight gets OUT_OF_ORDER_SEQUENCE_NUMBER (its issue 4953).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import trio
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from kafka import KafkaProducer

from kbroker.log.append_result import AppendResult
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.partition import Partition
from kbroker.testing.running_broker import RunningBroker
from tests.broker.wire import Client

COUNT = 600
PARTITIONS = 3


def write_with_confluent(bootstrap: str) -> None:
    failures: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.num.messages": 1,  # librdkafka has up to five messages of a partition in flight
            "retry.backoff.ms": 5,
            "log_level": 0,
        }
    )
    for number in range(COUNT):
        producer.produce(
            "t",
            b"%d" % number,
            partition=number % PARTITIONS,
            on_delivery=lambda error, _message: failures.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(120) == 0
    assert failures == []


def write_with_kafka_python(bootstrap: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, enable_idempotence=True, batch_size=100, retry_backoff_ms=5, linger_ms=1
    )
    futures = [producer.send("t", b"%d" % number, partition=number % PARTITIONS) for number in range(COUNT)]
    for future in futures:
        future.get(timeout=120)
    producer.close()


def write_with_aiokafka(bootstrap: str) -> None:
    async def write() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, max_batch_size=100, retry_backoff_ms=5, linger_ms=1
        )
        await producer.start()
        try:
            sent = [await producer.send("t", b"%d" % number, partition=number % PARTITIONS) for number in range(COUNT)]
            await asyncio.gather(*sent)
        finally:
            await producer.stop()

    asyncio.run(write())


@pytest.mark.parametrize("write", [write_with_confluent, write_with_kafka_python, write_with_aiokafka])
async def test_refused_batches_of_a_client_are_written_once_and_in_order(
    broker: RunningBroker, client: Client, monkeypatch: pytest.MonkeyPatch, write: Callable[[str], None]
) -> None:
    await client.create_topic("t", PARTITIONS)
    stage, calls, outcomes = Partition.stage, 0, set[int]()

    def refuse_some(
        partition: Partition, records: memoryview | None, version: int, acks: int, now_ms: int
    ) -> AppendResult:
        nonlocal calls
        calls += 1
        # Not enough replicas for every seventh batch, as if a follower was away for a moment.
        partition.insync_replicas = 0 if calls % 7 == 3 else 1
        result = stage(partition, records, version, acks, now_ms)
        outcomes.add(result.error)
        return result

    monkeypatch.setattr(Partition, "stage", refuse_some)
    # Late responses: the client sends several batches before it knows that the first was refused.
    with trio.fail_after(300), broker.faults.delay("Produce", seconds=0.02):
        await trio.to_thread.run_sync(write, broker.bootstrap, abandon_on_cancel=True)
    monkeypatch.undo()
    assert outcomes == {ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS}
    for index in range(PARTITIONS):
        values = [int(record.value or b"") for record in await client.read_all("t", partition=index)]
        assert values == list(range(index, COUNT, PARTITIONS))
