"""`kbroker transactions`: what it tells of those that are open and those that are not, and how it ends one."""

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


async def test_they_are_listed(call: Call, open_one: TransactionalProducer) -> None:
    listed = json.loads((await call("transactions", "list", "--json")).out)
    assert [(each["transactional_id"], each["state"]) for each in listed] == [
        ("idle", "Empty"),
        ("payments", "Ongoing"),
    ]
    table = (await call("transactions", "list", "--state", "ongoing")).out
    assert "payments" in table
    assert "idle" not in table


async def test_without_any_it_says_so(call: Call) -> None:
    outcome = await call("transactions", "list")
    assert (outcome.code, outcome.out) == (0, "")
    assert "there are no transactions" in outcome.err
    assert "like that" in (await call("transactions", "list", "--state", "empty")).err


async def test_one_is_described(call: Call, open_one: TransactionalProducer) -> None:
    [found] = json.loads((await call("transactions", "describe", "payments", "--json")).out)
    assert (found["state"], found["timeout_ms"], found["partitions"]) == ("Ongoing", 50_000, {"t": [1]})
    assert (found["producer_id"], found["producer_epoch"]) == (open_one.producer_id, 0)
    assert found["begun"].endswith("Z")
    assert "t-1" in (await call("transactions", "describe", "payments", "idle")).out


async def test_one_that_is_not_there_is_an_error(call: Call, client: Client) -> None:
    for action in ("describe", "abort"):
        outcome = await call("transactions", action, "nobody")
        assert outcome.code == 1
        assert "there is no such transactional id" in outcome.err


async def test_one_that_hangs_is_aborted_and_its_producer_fenced(
    call: Call, client: Client, open_one: TransactionalProducer
) -> None:
    assert (await call("transactions", "abort", "payments")).out == "transaction payments aborted\n"
    assert await read_committed(client, "t", partition=1) == []
    assert (await client.fetch("t", 0, partition=1, isolation_level=1)).last_stable_offset == 2
    assert (await open_one.end_once(is_commit=True)).error_code == ErrorCode.PRODUCER_FENCED
    outcome = await call("transactions", "abort", "payments")
    assert (outcome.code, "not open" in outcome.err) == (0, True)
