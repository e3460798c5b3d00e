"""`kbroker transactions`: lists, describes and aborts transactions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from kbroker.protocol.error_codes import ErrorCode
from kbroker.testing.running_broker import RunningBroker
from tests.broker.transactions import TransactionalProducer, read_committed
from tests.broker.wire import Client, connect
from tests.cli.conftest import Call


@pytest.fixture
async def client(broker: RunningBroker) -> AsyncIterator[Client]:
    async with connect(broker.port) as client:
        yield client


@pytest.fixture
async def open_one(client: Client) -> TransactionalProducer:
    await client.create_topic("t", 2)
    producer = await TransactionalProducer(client, "payments", version=2).init(timeout_ms=50_000)
    await producer.send("t", b"hangs", partition=1)
    await TransactionalProducer(client, "idle").init()
    return producer


async def test_transactions_are_listed(call: Call, open_one: TransactionalProducer) -> None:
    listed = json.loads((await call("transactions", "list", "--json")).out)
    assert [(row["transactional_id"], row["state"]) for row in listed] == [
        ("idle", "Empty"),
        ("payments", "Ongoing"),
    ]
    table = (await call("transactions", "list", "--state", "ongoing")).out
    assert "payments" in table
    assert "idle" not in table


async def test_without_transactions_the_list_says_so(call: Call) -> None:
    outcome = await call("transactions", "list")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == "No transactions.\n"
    assert (await call("transactions", "list", "--state", "empty")).err == "No matching transactions.\n"


async def test_a_transaction_is_described(call: Call, open_one: TransactionalProducer) -> None:
    [found] = json.loads((await call("transactions", "describe", "payments", "--json")).out)
    assert (found["state"], found["timeout_ms"], found["partitions"]) == ("Ongoing", 50_000, {"t": [1]})
    assert (found["producer_id"], found["producer_epoch"]) == (open_one.producer_id, 0)
    assert found["start_time"].endswith("Z")
    assert "t-1" in (await call("transactions", "describe", "payments", "idle")).out


async def test_an_unknown_transactional_id_is_an_error(call: Call, client: Client) -> None:
    for action in ("describe", "abort"):
        outcome = await call("transactions", action, "unknown-id")
        assert outcome.code == 1
        assert outcome.err == "kbroker: Transactional id 'unknown-id' does not exist.\n"


async def test_an_ongoing_transaction_is_aborted_and_its_producer_fenced(
    call: Call, client: Client, open_one: TransactionalProducer
) -> None:
    assert (await call("transactions", "abort", "payments")).out == "Aborted transaction payments.\n"
    assert await read_committed(client, "t", partition=1) == []
    assert (await client.fetch("t", 0, partition=1, isolation_level=1)).last_stable_offset == 2
    assert (await open_one.end_once(is_commit=True)).error_code == ErrorCode.PRODUCER_FENCED
    outcome = await call("transactions", "abort", "payments")
    assert (outcome.code, "not ongoing" in outcome.err) == (0, True)
