"""`kbroker transactions`: lists, describes and aborts transactions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from kbroker.client.admin import active_producers
from kbroker.client.admin.transactions import TransactionDescription
from kbroker.client.cluster import Cluster
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
    for arguments in (("describe", "unknown-id"), ("abort", "unknown-id", "--yes")):
        outcome = await call("transactions", *arguments)
        assert outcome.code == 1
        assert outcome.err == "kbroker: Transactional id 'unknown-id' does not exist.\n"


async def test_an_ongoing_transaction_is_aborted_and_its_producer_fenced(
    call: Call, client: Client, open_one: TransactionalProducer
) -> None:
    refused = await call("transactions", "abort", "payments")
    assert (refused.code, "Add --yes to confirm" in refused.err) == (1, True)
    assert (await call("transactions", "abort", "payments", "--yes")).out == "Aborted transaction payments.\n"
    assert await read_committed(client, "t", partition=1) == []
    assert (await client.fetch("t", 0, partition=1, isolation_level=1)).last_stable_offset == 2
    assert (await open_one.end_once(is_commit=True)).error_code == ErrorCode.PRODUCER_FENCED
    outcome = await call("transactions", "abort", "payments", "--yes")
    assert (outcome.code, "not ongoing" in outcome.err) == (0, True)


async def test_producers_of_a_topic_are_shown(call: Call, open_one: TransactionalProducer) -> None:
    [found] = json.loads((await call("transactions", "producers", "t", "--json")).out)
    assert (found["partition"], found["producer_id"], found["start_offset"]) == (1, open_one.producer_id, 0)
    row = (await call("transactions", "producers", "t", "--partition", "1")).out.splitlines()[1].split()
    assert row[:3] == ["t", "1", str(open_one.producer_id)]
    assert await call("transactions", "producers", "t", "--partition", "0") == (0, "", "No producers.\n")


async def test_a_transaction_that_its_coordinator_knows_does_not_hang(
    call: Call, open_one: TransactionalProducer
) -> None:
    assert await call("transactions", "find-hanging", "--older-than", "0s") == (0, "", "No hanging transactions.\n")


async def test_a_hanging_transaction_is_found_and_aborted(
    call: Call, client: Client, open_one: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator is asked for another partition: then it does not know this one."""

    async def describe_nothing(cluster: Cluster, transactional_id: str) -> TransactionDescription:
        return TransactionDescription(transactional_id, "Ongoing", open_one.producer_id, 0, 50_000, 0, {"t": (0,)})

    monkeypatch.setattr(active_producers, "describe_transaction", describe_nothing)
    assert (await call("transactions", "find-hanging", "t")).err == "No hanging transactions.\n"  # too young
    [found] = json.loads((await call("transactions", "find-hanging", "--older-than", "2999-01-01", "--json")).out)
    assert (found["topic"], found["partition"], found["start_offset"]) == ("t", 1, 0)
    abort = ("transactions", "abort-hanging", "t", "--partition", "1", "--yes", "--start-offset")
    code, _, err = await call(*abort, "5")
    assert (code, err) == (1, "kbroker: No open transaction of t-1 begins at offset 5.\n")
    assert (await call(*abort, "0")).out == f"Aborted the transaction of producer {open_one.producer_id} in t-1.\n"
    assert (await client.fetch("t", 0, partition=1, isolation_level=1)).last_stable_offset == 2
    assert await read_committed(client, "t", partition=1) == []
