"""Producing inside a transaction that another connection ends, with and without KIP-890."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kbroker.client import transactional_producing
from kbroker.client.address import Address
from kbroker.client.admin.topics import create_topic
from kbroker.client.admin.transactions import abort_transaction
from kbroker.client.cluster import Cluster, open_cluster
from kbroker.client.consuming import Consumer
from kbroker.client.failures import BrokerRefusal
from kbroker.client.producing import ProducerBatch
from kbroker.client.transactional_producing import (
    ProducerTransaction,
    TransactionalProducer,
    TransactionForgotten,
    TransactionLost,
    end_transaction,
    init_producer,
)
from kbroker.errors import UserError
from kbroker.protocol.records import Record, build_batch
from kbroker.testing.running_broker import running_broker

TIMEOUT_MS = 60_000


@pytest.fixture(params=[True, False], ids=["KIP-890", "before KIP-890"])
def has_kip_890(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    is_new: bool = request.param
    if not is_new:
        monkeypatch.setattr(transactional_producing, "has_version_2", lambda connection: False)
    return is_new


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with (
        running_broker(tmp_path / "data") as broker,
        open_cluster([Address(broker.host, broker.port)], retry_s=10) as cluster,
    ):
        await create_topic(cluster, "t", partitions=2)
        yield cluster


async def write(cluster: Cluster, transaction: ProducerTransaction, *values: bytes) -> None:
    producer = TransactionalProducer(cluster, transaction)
    for value in values:
        batch = build_batch(
            [Record(0, 0, None, value)],
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            base_sequence=producer.take_sequence("t", 0, record_count=1),
            is_transactional=True,
        )
        await producer.send("t", {0: ProducerBatch(batch, 1)})


async def committed(cluster: Cluster) -> list[bytes | None]:
    consumer = Consumer(cluster, "t", {0: 0}, read_committed=True, max_wait_ms=50)
    found: list[bytes | None] = []
    while fetched := await consumer.poll():
        found += [record.value for record in fetched[0].records]
    return found


async def test_a_transaction_is_ended_from_another_connection(
    cluster: Cluster, tmp_path: Path, has_kip_890: bool
) -> None:
    first = await init_producer(cluster, "id", TIMEOUT_MS)
    await write(cluster, first, b"a", b"b")
    assert await committed(cluster) == []
    async with open_cluster([next(iter(cluster.brokers.values())).address]) as other:
        following = await end_transaction(other, first, is_commit=True)
        assert await end_transaction(other, first, is_commit=True) == following  # harmless
    if not has_kip_890:
        assert following is None
        following = await init_producer(cluster, "id", TIMEOUT_MS, previous=first)
    assert following is not None
    assert following.producer_epoch == first.producer_epoch + 1
    await write(cluster, following, b"c")
    with pytest.raises(BrokerRefusal, match=r"INVALID_PRODUCER_EPOCH|PRODUCER_FENCED"):
        await write(cluster, first, b"late")
    await end_transaction(cluster, following, is_commit=True)
    assert await committed(cluster) == [b"a", b"b", b"c"]


async def test_an_aborted_transaction_cannot_be_committed(cluster: Cluster, has_kip_890: bool) -> None:
    first = await init_producer(cluster, "id", TIMEOUT_MS)
    await write(cluster, first, b"a")
    assert await abort_transaction(cluster, "id")
    with pytest.raises(TransactionLost):
        await end_transaction(cluster, first, is_commit=True)
    with pytest.raises(TransactionForgotten):
        await end_transaction(cluster, first._replace(transactional_id="unknown"), is_commit=True)
    assert await committed(cluster) == []


async def test_a_new_producer_of_the_id_fences_the_old_one(cluster: Cluster, has_kip_890: bool) -> None:
    first = await init_producer(cluster, "id", TIMEOUT_MS)
    await write(cluster, first, b"a")
    second = await init_producer(cluster, "id", TIMEOUT_MS)
    with pytest.raises(UserError):
        await write(cluster, first, b"b")
    with pytest.raises(TransactionLost):
        await end_transaction(cluster, first, is_commit=True)
    await write(cluster, second, b"c")
    await end_transaction(cluster, second, is_commit=True)
    assert await committed(cluster) == [b"c"]
