"""Transactions over brokers: the coordinator, the leader and the group coordinator are different, and they move."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import trio

from kbroker.client.address import Address
from kbroker.client.admin.transactions import (
    ListedTransaction,
    abort_transaction,
    describe_transaction,
    list_transactions,
)
from kbroker.client.cluster import open_cluster
from kbroker.errors import UserError
from kbroker.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import write_txn_markers
from kbroker.transaction.records import Transaction
from kbroker.transaction.states import TransactionState
from tests.broker.transactions import TransactionalProducer, committed_offset, end_offset, read_committed
from tests.broker.wire import Client, records_of
from tests.replication.cluster import Cluster, eventually

ALL = (1, 2, 3)
ID = "pay"
EITHER = pytest.mark.parametrize("version", [0, 2])


@pytest.fixture
async def clients(cluster: Cluster, stack: AsyncExitStack) -> dict[int, Client]:
    """Returns a client of each broker. Broker 1 coordinates transactions, 2 leads `orders`, 3 coordinates groups."""
    await cluster.start(*ALL, transaction_abort_timed_out_transaction_cleanup_interval_ms=10)
    cluster.add_topic(1, ALL, name=TRANSACTION_STATE, min_insync_replicas="2", cleanup_policy="compact")
    cluster.add_topic(3, ALL, name=CONSUMER_OFFSETS, cleanup_policy="compact")
    cluster.add_topic(2, ALL)
    cluster.add_topic(3, ALL, name="other")
    await eventually(lambda: coordinates(cluster, 1))
    return {broker_id: await stack.enter_async_context(cluster.client(broker_id)) for broker_id in ALL}


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def coordinates(cluster: Cluster, broker_id: int) -> bool:
    shards = cluster.nodes[broker_id].transactions.shards
    return 0 in shards.drivers and shards.drivers[0].is_loaded


def transaction(cluster: Cluster, broker_id: int) -> Transaction:
    return cluster.nodes[broker_id].transactions.shards.drivers[0].shard.transactions[ID]


async def in_state(cluster: Cluster, state: TransactionState, *, on: int = 1) -> None:
    await eventually(lambda: transaction(cluster, on).state is state)


async def producer(
    clients: dict[int, Client], version: int, *, coordinator: int = 1, **members: int
) -> TransactionalProducer:
    made = TransactionalProducer(clients[coordinator], ID, version=version, leader=clients[2], groups=clients[3])
    return await made.init(**members)


async def fail_over(cluster: Cluster, broker_id: int, *, to: int) -> None:
    """Kills the coordinator: it leaves all ISRs, and another broker leads its partition."""
    await cluster.kill(broker_id)
    isr = tuple(replica for replica in ALL if replica != broker_id)
    for topic in (CONSUMER_OFFSETS, "orders", "other"):
        cluster.change(topic, isr=isr)
    cluster.change(TRANSACTION_STATE, leader=to, isr=isr)
    await eventually(lambda: coordinates(cluster, to))


@EITHER
async def test_transactions_end_on_leaders_that_do_not_coordinate_them(
    cluster: Cluster, clients: dict[int, Client], version: int
) -> None:
    pay = await producer(clients, version)
    for number in range(4):
        await pay.send("orders", b"%d" % number)
        await pay.end(is_commit=number % 2 == 0)
        await in_state(
            cluster, TransactionState.COMPLETE_COMMIT if number % 2 == 0 else TransactionState.COMPLETE_ABORT
        )
    assert await read_committed(clients[2], "orders") == [b"0", b"2"]


@EITHER
async def test_a_follower_that_becomes_leader_knows_aborted_and_open_transactions(
    cluster: Cluster, clients: dict[int, Client], version: int
) -> None:
    pay = await producer(clients, version)
    for is_commit in (False, True):
        await pay.send("orders", b"%d" % is_commit)
        await pay.end(is_commit=is_commit)
        await in_state(cluster, TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT)
    await pay.send("orders", b"open")
    stable = await end_offset(clients[2], "orders", 1)
    await eventually(lambda: cluster.nodes[3].end == cluster.nodes[2].end)
    cluster.change(leader=3)
    await eventually(lambda: cluster.nodes[3].high_watermark == cluster.nodes[3].end)
    assert await end_offset(clients[3], "orders", 1) == stable == 4
    assert await read_committed(clients[3], "orders") == [b"1"]
    pay.leader = clients[3]
    assert await pay.send_once("orders", b"more") == 0
    await pay.commit()
    await in_state(cluster, TransactionState.COMPLETE_COMMIT)
    assert await read_committed(clients[3], "orders") == [b"1", b"open", b"more"]


@EITHER
async def test_a_follower_serves_readers_of_committed_records(
    cluster: Cluster, clients: dict[int, Client], version: int
) -> None:
    pay = await producer(clients, version)
    for is_commit in (False, True):
        await pay.send("orders", b"%d" % is_commit)
        await pay.end(is_commit=is_commit)
        await in_state(cluster, TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT)
    await pay.send("orders", b"open")
    await eventually(lambda: cluster.nodes[3].high_watermark == cluster.nodes[2].end == 5)
    for follower in (clients[1], clients[3]):
        answer = await follower.fetch("orders", 0, isolation_level=1)
        assert (answer.high_watermark, answer.last_stable_offset) == (5, 4)
        assert [(aborted.producer_id, aborted.first_offset) for aborted in answer.aborted_transactions] == [
            (pay.producer_id, 0)
        ]
        assert await read_committed(follower, "orders") == [b"1"]

    async def wait_for_commit() -> None:
        answer = await clients[3].fetch("orders", 4, isolation_level=1, max_wait_ms=28_000)
        assert records_of(answer)[0].value == b"open"

    with trio.fail_after(15):  # long before the timeout of the fetch
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_commit)
            await eventually(lambda: bool(cluster.nodes[3].replica().fetch_waiters))
            await pay.commit()
    assert await read_committed(clients[3], "orders") == [b"1", b"open"]


@pytest.mark.parametrize("broker_id", ALL)
async def test_transactions_are_listed_described_and_aborted_through_any_broker(
    cluster: Cluster, clients: dict[int, Client], broker_id: int
) -> None:
    pay = await producer(clients, 0, timeout_ms=50_000)
    await pay.send("orders", b"a")
    async with open_cluster([Address("127.0.0.1", cluster.nodes[broker_id].port)]) as admin:
        assert await list_transactions(admin) == [ListedTransaction(ID, pay.producer_id, "Ongoing", 1)]
        assert await list_transactions(admin, states=["Empty"]) == []
        found = await describe_transaction(admin, ID)
        assert (found.state, found.timeout_ms, found.partitions) == ("Ongoing", 50_000, {"orders": (0,)})
        assert await abort_transaction(admin, ID)
        assert (await describe_transaction(admin, ID)).state == "Empty"
        assert not await abort_transaction(admin, ID)
        with pytest.raises(UserError, match="'unknown' does not exist"):
            await describe_transaction(admin, "unknown")
    assert (await pay.end_once(is_commit=True)).error_code == ErrorCode.PRODUCER_FENCED
    assert await read_committed(clients[2], "orders") == []


async def test_a_broker_lists_and_describes_the_transactions_that_it_coordinates(
    cluster: Cluster, clients: dict[int, Client]
) -> None:
    await producer(clients, 0)
    for broker_id, client in clients.items():
        listed = await client.ask("ListTransactions", 1)
        assert [state.transactional_id for state in listed.transaction_states] == ([ID] if broker_id == 1 else [])
        described = await client.ask("DescribeTransactions", 0, transactional_ids=[ID])
        expected = ErrorCode.NONE if broker_id == 1 else ErrorCode.NOT_COORDINATOR
        assert described.transaction_states[0].error_code == expected


@EITHER
async def test_offsets_of_a_transaction_count_where_the_group_is_coordinated(
    cluster: Cluster, clients: dict[int, Client], version: int
) -> None:
    pay = await producer(clients, version)
    for offset, is_commit in ((5, True), (9, False)):
        if version < 2:
            assert await pay.add_offsets("readers") == 0
        assert await pay.commit_offset("readers", "orders", offset) == 0
        unstable = await committed_offset(clients[3], "readers", "orders", require_stable=True)
        assert unstable[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
        await pay.end(is_commit=is_commit)
        await in_state(cluster, TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT)
        assert await committed_offset(clients[3], "readers", "orders", require_stable=True) == (0, 5)


async def test_records_outside_a_transaction_are_refused_by_their_leader(
    cluster: Cluster, clients: dict[int, Client]
) -> None:
    pay = await producer(clients, 0)
    assert await pay.send_once("orders", b"never added") == ErrorCode.INVALID_TXN_STATE
    assert await pay.commit_offset("readers", "orders", 1) == ErrorCode.INVALID_TXN_STATE
    assert await pay.add("orders", 0) == [0]
    pay.epoch += 1
    assert await pay.send_once("orders", b"other epoch") == ErrorCode.INVALID_PRODUCER_EPOCH
    pay.epoch -= 1
    assert await pay.send_once("orders", b"added") == 0
    assert cluster.nodes[2].end == 1


@EITHER
async def test_the_next_coordinator_ends_what_was_decided_and_half_told(
    cluster: Cluster, clients: dict[int, Client], version: int
) -> None:
    pay = await producer(clients, version)
    await pay.send("orders", b"a")
    pay.leader = clients[3]
    await pay.send("other", b"b")
    cluster.change("other", leader=-1)
    await pay.commit()
    await eventually(lambda: cluster.nodes[2].end == 2)  # one of two markers
    assert transaction(cluster, 1).state is TransactionState.PREPARE_COMMIT
    await fail_over(cluster, 1, to=2)
    assert transaction(cluster, 2).state is TransactionState.PREPARE_COMMIT
    cluster.change("other", leader=3)
    await in_state(cluster, TransactionState.COMPLETE_COMMIT, on=2)
    assert await read_committed(clients[2], "orders") == [b"a"]
    assert await read_committed(clients[3], "other") == [b"b"]
    later = TransactionalProducer(clients[2], ID, version=version)
    assert (await later.init()).epoch > pay.epoch - (version >= 2)


async def test_an_open_transaction_goes_on_with_the_next_coordinator(
    cluster: Cluster, clients: dict[int, Client]
) -> None:
    pay = await producer(clients, 0)
    await pay.send("orders", b"a")
    await fail_over(cluster, 1, to=3)
    pay.client = clients[3]
    await pay.send("orders", b"b")
    await pay.commit()
    await in_state(cluster, TransactionState.COMPLETE_COMMIT, on=3)
    assert await read_committed(clients[2], "orders") == [b"a", b"b"]


async def test_a_producer_is_fenced_by_a_newer_one_at_the_next_coordinator(
    cluster: Cluster, clients: dict[int, Client]
) -> None:
    old = await producer(clients, 0)
    await old.send("orders", b"aborted")
    await fail_over(cluster, 1, to=3)
    new = await producer(clients, 0, coordinator=3)
    assert new.producer_id == old.producer_id
    assert new.epoch > old.epoch
    old.client = clients[3]
    assert await old.send_once("orders", b"zombie") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert (await old.end_once(is_commit=True)).error_code == ErrorCode.PRODUCER_FENCED
    await new.send("orders", b"new")
    await new.commit()
    await in_state(cluster, TransactionState.COMPLETE_COMMIT, on=3)
    assert await read_committed(clients[2], "orders") == [b"new"]


async def test_a_transaction_that_exceeds_its_timeout_is_aborted_by_the_next_coordinator(
    cluster: Cluster, clients: dict[int, Client]
) -> None:
    pay = await producer(clients, 0, timeout_ms=1000)
    await pay.send("orders", b"late")
    await fail_over(cluster, 1, to=3)
    await in_state(cluster, TransactionState.COMPLETE_ABORT, on=3)
    assert await read_committed(clients[2], "orders") == []
    assert await end_offset(clients[2], "orders", 1) == 2


@EITHER
async def test_records_wait_for_a_coordinator(cluster: Cluster, clients: dict[int, Client], version: int) -> None:
    pay = await producer(clients, version)
    if version < 2:
        assert await pay.add("orders", 0) == [0]
    await cluster.kill(1)
    assert await pay.send_once("orders", b"a") == ErrorCode.NOT_ENOUGH_REPLICAS
    pay.sequences["orders", 0] = 1
    assert await pay.send_once("orders", b"b") == ErrorCode.NOT_ENOUGH_REPLICAS
    cluster.change(TRANSACTION_STATE, leader=3, isr=(2, 3))
    cluster.change(isr=(2, 3))
    await eventually(lambda: coordinates(cluster, 3))
    assert await pay.send_once("orders", b"b") == ErrorCode.NOT_ENOUGH_REPLICAS  # it would overtake its predecessor
    pay.sequences.clear()
    with trio.fail_after(30):
        assert await pay.send_once("orders", b"a") == 0
    assert await pay.send_once("orders", b"b") == 0
    pay.client = clients[3]
    await pay.commit()
    await in_state(cluster, TransactionState.COMPLETE_COMMIT, on=3)
    assert await read_committed(clients[2], "orders") == [b"a", b"b"]


async def write_marker(client: Client, topic: str) -> int:
    """Sends an abort marker of an unknown producer. Returns the error code."""
    topics = [write_txn_markers.WritableTxnMarkerTopic(name=topic, partition_indexes=[0])]
    marker = write_txn_markers.WritableTxnMarker(
        producer_id=7, producer_epoch=0, transaction_result=False, topics=topics, coordinator_epoch=0
    )
    answer = await client.ask("WriteTxnMarkers", 1, markers=[marker])
    code: int = answer.markers[0].topics[0].partitions[0].error_code
    return code


async def test_a_marker_that_is_not_committed_in_time_is_answered(cluster: Cluster) -> None:
    await cluster.start(1, 2, request_timeout_ms=50)
    cluster.add_topic(1, (1, 2))
    await cluster.nodes[2].kill()
    async with cluster.client(1) as client:
        assert await write_marker(client, "orders") == ErrorCode.REQUEST_TIMED_OUT
    assert cluster.nodes[1].end == 1


async def test_other_coordinators_get_codes_that_they_know(cluster: Cluster, clients: dict[int, Client]) -> None:
    assert await write_marker(clients[1], "orders") == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await write_marker(clients[1], "missing") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    cluster.nodes[3].groups.shards.drivers[0].is_loaded = False
    assert await write_marker(clients[3], CONSUMER_OFFSETS) == ErrorCode.NOT_LEADER_OR_FOLLOWER
