"""Transactions over the wire, with clients that add their partitions and with clients whose epoch grows (KIP-890)."""

from __future__ import annotations

import logging

import pytest
import trio

from kbroker.names import CONSUMER_OFFSETS
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import add_partitions_to_txn, offset_commit, write_txn_markers
from kbroker.testing.running_broker import RunningBroker
from tests.broker.batches import make_batch
from tests.broker.conftest import Connect, StartBroker
from tests.broker.transactions import TransactionalProducer, committed_offset, end_offset, read_committed
from tests.broker.wire import Client, fetch_members

UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
EITHER = pytest.mark.parametrize("version", [0, 2])


async def producer(client: Client, version: int, name: str = "pay", **members: int) -> TransactionalProducer:
    return await TransactionalProducer(client, name, version=version).init(**members)


async def wait_state(client: Client, name: str, state: str) -> None:
    with trio.fail_after(30):
        while True:
            answer = await client.ask("DescribeTransactions", 0, transactional_ids=[name])
            if answer.transaction_states[0].transaction_state == state:
                return
            await trio.sleep(0.02)


@EITHER
async def test_committed_records_are_read_and_aborted_or_open_ones_are_not(client: Client, version: int) -> None:
    await client.create_topic("t", 2)
    pay = await producer(client, version)
    for number, is_commit in enumerate([True, False, True, False]):
        for partition in (0, 1):
            await pay.send("t", b"%d" % number, partition=partition)
        await pay.end(is_commit=is_commit)
    await client.produce("t", make_batch(b"plain"))
    await pay.send("t", b"open")
    await client.produce("t", make_batch(b"behind"))
    assert await read_committed(client, "t") == [b"0", b"2", b"plain"]
    assert await read_committed(client, "t", partition=1) == [b"0", b"2"]
    await pay.commit()
    assert await read_committed(client, "t") == [b"0", b"2", b"plain", b"open", b"behind"]


@EITHER
async def test_offsets_end_where_the_open_transaction_begins(client: Client, version: int) -> None:
    await client.create_topic("t")
    await client.produce("t", make_batch(b"plain"))
    pay = await producer(client, version)
    await pay.send("t", b"a", b"b")
    assert (await end_offset(client, "t", 0), await end_offset(client, "t", 1)) == (3, 1)
    await pay.abort()
    assert (await end_offset(client, "t", 0), await end_offset(client, "t", 1)) == (4, 4)
    answer = await client.fetch("t", 0, isolation_level=1)
    assert [(aborted.producer_id, aborted.first_offset) for aborted in answer.aborted_transactions] == [
        (pay.producer_id, 1)
    ]
    assert (await client.fetch("t", 0, isolation_level=0)).aborted_transactions is None


async def test_aborted_transactions_are_told_after_a_restart(start_broker: StartBroker, connect_to: Connect) -> None:
    broker = await start_broker()
    client = await connect_to(broker)
    await client.create_topic("t")
    pay = await producer(client, 2)
    await pay.send("t", b"no")
    await pay.abort()
    await pay.send("t", b"yes")
    await pay.commit()
    await broker.stop()
    client = await connect_to(await start_broker())
    assert await read_committed(client, "t") == [b"yes"]
    again = await producer(client, 2)
    assert (again.producer_id, again.epoch) == (pay.producer_id, pay.epoch + 1)


async def test_a_reader_of_committed_records_waits_for_the_commit(
    client: Client, broker: RunningBroker, connect_to: Connect
) -> None:
    await client.create_topic("t")
    reader = await connect_to(broker)
    pay = await producer(client, 2)
    await reader.send("Fetch", 11, **fetch_members({("t", 0): 0}, max_wait_ms=30_000, isolation_level=1))
    await pay.send("t", b"a", b"b")
    assert await end_offset(client, "t", 0) == 2  # the reader had its chance to be woken by these
    await pay.commit()
    answer = (await reader.receive()).responses[0].partitions[0]
    assert (answer.last_stable_offset, len(bytes(answer.records)) > 0) == (3, True)


# Fencing


@EITHER
async def test_a_second_producer_takes_over_and_the_first_is_fenced(client: Client, version: int) -> None:
    await client.create_topic("t")
    first = await producer(client, version)
    await first.send("t", b"zombie")
    second = await producer(client, version)
    assert second.producer_id == first.producer_id
    assert second.epoch > first.epoch
    assert (await first.end_once(is_commit=True)).error_code == ErrorCode.PRODUCER_FENCED
    assert await first.send_once("t", b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
    await second.send("t", b"new")
    await second.commit()
    assert await read_committed(client, "t") == [b"new"]


async def test_old_versions_know_the_old_error(client: Client) -> None:
    await client.create_topic("t")
    first = await producer(client, 0)
    await producer(client, 0)
    old = ErrorCode.INVALID_PRODUCER_EPOCH
    assert (await first.end_once(is_commit=True, version=1)).error_code == old
    assert await first.add("t", 0, version=1) == [old]
    assert await first.add("t", 0, version=2) == [ErrorCode.PRODUCER_FENCED]
    assert await first.add_offsets("g", version=1) == old
    named = {"producer_id": first.producer_id, "producer_epoch": first.epoch}
    assert (await first.init_once(version=3, **named)).error_code == old
    assert (await first.init_once(version=4, **named)).error_code == ErrorCode.PRODUCER_FENCED


async def test_another_producer_meets_concurrent_transactions_while_it_aborts(client: Client) -> None:
    await client.create_topic("t")
    first = await producer(client, 0)
    await first.send("t", b"x")
    answer = await first.init_once()
    assert (answer.error_code, answer.producer_id) == (ErrorCode.CONCURRENT_TRANSACTIONS, -1)
    assert (await first.init_once()).error_code == 0


async def test_timeouts_above_the_limit_are_refused(client: Client) -> None:
    pay = TransactionalProducer(client, "pay")
    await pay.find_coordinator()
    assert (await pay.init_once(timeout_ms=900_001)).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


@EITHER
async def test_a_transaction_that_takes_too_long_is_aborted(
    start_broker: StartBroker, connect_to: Connect, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await start_broker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": "10"})
    client = await connect_to(broker)
    await client.create_topic("t")
    pay = await producer(client, version, timeout_ms=50)
    await pay.send("t", b"slow")
    await wait_state(client, "pay", "CompleteAbort")
    (warning,) = [record for record in caplog.records if record.name == "kbroker.coordinator.transaction_driver"]
    assert (warning.levelno, warning.getMessage()) == (
        logging.WARNING,
        "Aborting transaction pay: it was open for longer than its timeout of 50 ms",
    )
    assert await read_committed(client, "t") == []
    assert await end_offset(client, "t", 1) == 2
    expected = ErrorCode.INVALID_TXN_STATE if version else ErrorCode.PRODUCER_FENCED
    assert (await pay.end_once(is_commit=True)).error_code == expected
    assert await pay.send_once("t", b"late") == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_idle_ids_are_forgotten(start_broker: StartBroker, connect_to: Connect) -> None:
    interval = "transaction.remove.expired.transaction.cleanup.interval.ms"
    client = await connect_to(await start_broker({interval: "10", "transactional.id.expiration.ms": "1"}))
    pay = await producer(client, 0)
    with trio.fail_after(30):
        while True:
            answer = await client.ask("DescribeTransactions", 0, transactional_ids=["pay"])
            if answer.transaction_states[0].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                break
            await trio.sleep(0.02)
    assert await pay.add("t", 0) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert (await pay.end_once(is_commit=True)).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


# Verification by partitions


async def test_records_outside_a_transaction_are_refused(client: Client) -> None:
    await client.create_topic("t", 2)
    pay = await producer(client, 0)
    assert await pay.send_once("t", b"x") == ErrorCode.INVALID_TXN_STATE
    assert await pay.send_once("t", b"x", version=11) == ErrorCode.TRANSACTION_ABORTABLE
    await pay.send("t", b"a")
    assert await pay.send_once("t", b"x", partition=1) == ErrorCode.INVALID_TXN_STATE
    await pay.commit()
    assert await pay.send_once("t", b"x") == ErrorCode.INVALID_TXN_STATE
    assert [record.value for record in await client.read_all("t", partition=1)] == []
    plain = make_batch(b"x", producer_id=pay.producer_id, epoch=0, sequence=1)
    assert (await client.produce("t", plain)).error_code == 0
    await pay.send("t")
    pay.sequences["t", 0] = 2
    await pay.send("t", b"b")
    plain = make_batch(b"x", producer_id=pay.producer_id, epoch=0, sequence=3)
    assert (await client.produce("t", plain)).error_code == ErrorCode.INVALID_TXN_STATE


async def test_without_verification_partitions_accept_all_batches(
    start_broker: StartBroker, connect_to: Connect
) -> None:
    client = await connect_to(await start_broker({"transaction.partition.verification.enable": "false"}))
    await client.create_topic("t")
    pay = await producer(client, 0)
    assert await pay.send_once("t", b"x") == 0


async def test_one_partition_that_is_not_there_keeps_all_from_being_added(client: Client) -> None:
    await client.create_topic("t")
    pay = await producer(client, 0)
    codes = await pay.add("t", 0, 7)
    assert codes == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    answer = await client.ask("DescribeTransactions", 0, transactional_ids=["pay"])
    assert answer.transaction_states[0].transaction_state == "Empty"
    assert await pay.add(CONSUMER_OFFSETS, 0) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]


async def test_brokers_ask_for_many_transactions_at_once(client: Client) -> None:
    await client.create_topic("t", 2)
    pay = await producer(client, 2)
    await pay.send("t", b"x")
    topics = [add_partitions_to_txn.AddPartitionsToTxnTopic(name="t", partitions=[0, 1])]
    asked = [
        add_partitions_to_txn.AddPartitionsToTxnTransaction(verify_only=True, topics=topics, **pay.named),
        add_partitions_to_txn.AddPartitionsToTxnTransaction(
            verify_only=True, topics=topics, **{**pay.named, "transactional_id": "nobody"}
        ),
        add_partitions_to_txn.AddPartitionsToTxnTransaction(verify_only=False, topics=topics, **pay.named),
    ]
    for version, missing in ((4, ErrorCode.INVALID_TXN_STATE), (5, ErrorCode.TRANSACTION_ABORTABLE)):
        answer = await client.ask("AddPartitionsToTxn", version, transactions=asked[:2])
        codes = [
            [partition.partition_error_code for partition in result.topic_results[0].results_by_partition]
            for result in answer.results_by_transaction
        ]
        assert codes == [[0, missing], [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2]
    answer = await client.ask("AddPartitionsToTxn", 5, transactions=asked[2:])
    results = answer.results_by_transaction[0].topic_results[0].results_by_partition
    assert [result.partition_error_code for result in results] == [0, 0]
    assert (await client.ask("AddPartitionsToTxn", 5, transactions=[])).error_code == 0


async def test_a_topic_that_is_deleted_does_not_keep_its_transaction_from_ending(client: Client) -> None:
    await client.create_topic("t")
    await client.create_topic("gone")
    pay = await producer(client, 2)
    await pay.send("t", b"x")
    await pay.send("gone", b"x")
    await client.delete_topic("gone")
    await pay.commit()
    await wait_state(client, "pay", "CompleteCommit")
    assert await read_committed(client, "t") == [b"x"]


async def test_the_coordinator_is_not_available_before_a_client_has_looked_for_it(client: Client) -> None:
    pay = TransactionalProducer(client, "pay")
    assert (await pay.init_once()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    await pay.find_coordinator()
    assert (await pay.init_once()).error_code == 0


# Offsets of groups


@EITHER
async def test_offsets_count_when_the_transaction_is_committed(client: Client, version: int) -> None:
    await client.create_topic("t")
    pay = await producer(client, version)
    for offset, is_commit in ((5, True), (7, False)):
        if not version:
            assert await pay.add_offsets("g") == 0
        else:
            await client.ask("FindCoordinator", 2, key="g", key_type=0)
        before = await committed_offset(client, "g", "t")
        assert await pay.commit_offset("g", "t", offset) == 0
        assert await committed_offset(client, "g", "t") == before
        assert await committed_offset(client, "g", "t", require_stable=True) == (UNSTABLE, -1)
        await pay.end(is_commit=is_commit)
        assert await committed_offset(client, "g", "t", require_stable=True) == (0, 5)


async def test_offsets_outside_a_transaction_are_refused(client: Client) -> None:
    await client.create_topic("t")
    await client.ask("FindCoordinator", 2, key="g", key_type=0)
    pay = await producer(client, 0)
    assert await pay.commit_offset("g", "t", 1) == ErrorCode.INVALID_TXN_STATE
    assert await pay.commit_offset("g", "t", 1, version=4) == ErrorCode.TRANSACTION_ABORTABLE
    assert await pay.add_offsets("g") == 0
    assert await pay.commit_offset("g", "nowhere", 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    pay.epoch += 1
    assert await pay.commit_offset("g", "t", 1) == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_a_member_that_is_no_more_cannot_commit(client: Client) -> None:
    await client.create_topic("t")
    pay = await producer(client, 0)
    assert await pay.add_offsets("g") == 0
    code = await pay.commit_offset("g", "t", 1, member_id="gone", generation_id=4)
    assert code == ErrorCode.ILLEGAL_GENERATION


async def test_a_plain_commit_that_came_later_stays(client: Client) -> None:
    await client.create_topic("t")
    pay = await producer(client, 0)
    await pay.add_offsets("g")
    await pay.commit_offset("g", "t", 5)
    partition = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=9, committed_metadata="")
    topics = [offset_commit.OffsetCommitRequestTopic(name="t", partitions=[partition])]
    answer = await client.ask("OffsetCommit", 8, group_id="g", generation_id_or_member_epoch=-1, topics=topics)
    assert answer.topics[0].partitions[0].error_code == 0
    assert await committed_offset(client, "g", "t", require_stable=True) == (UNSTABLE, -1)
    await pay.commit()
    assert await committed_offset(client, "g", "t", require_stable=True) == (0, 9)


async def test_open_offsets_are_still_open_after_a_restart(start_broker: StartBroker, connect_to: Connect) -> None:
    broker = await start_broker()
    client = await connect_to(broker)
    await client.create_topic("t")
    pay = await producer(client, 0)
    await pay.add_offsets("g")
    await pay.commit_offset("g", "t", 5)
    await broker.stop()
    pay.client = client = await connect_to(await start_broker())
    with trio.fail_after(30):
        while (found := await committed_offset(client, "g", "t", require_stable=True))[0] != UNSTABLE:
            assert found == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)
    with trio.fail_after(30):
        while (answer := await pay.end_once(is_commit=True)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            pass
    assert answer.error_code == 0
    await wait_state(client, "pay", "CompleteCommit")
    assert await committed_offset(client, "g", "t", require_stable=True) == (0, 5)


# Admin


async def test_transactions_are_listed_by_filters(client: Client) -> None:
    await client.create_topic("t")
    open_one = await producer(client, 2, "open")
    await open_one.send("t", b"x")
    idle = await producer(client, 2, "idle")

    async def listed(version: int = 2, **members: object) -> list[str]:
        asked = {"state_filters": [], "producer_id_filters": [], **members}
        answer = await client.ask("ListTransactions", version, **asked)
        assert answer.error_code == 0
        return sorted(state.transactional_id for state in answer.transaction_states)

    assert await listed() == await listed(0) == ["idle", "open"]
    assert await listed(state_filters=["Ongoing"]) == ["open"]
    assert await listed(producer_id_filters=[idle.producer_id]) == ["idle"]
    assert await listed(transactional_id_pattern="o.*") == ["open"]
    assert await listed(duration_filter=3_600_000, state_filters=["Ongoing"]) == []
    answer = await client.ask("ListTransactions", 2, state_filters=["Odd"], producer_id_filters=[])
    assert (answer.unknown_state_filters, answer.transaction_states) == (["Odd"], [])
    answer = await client.ask(
        "ListTransactions", 2, state_filters=[], producer_id_filters=[], transactional_id_pattern="("
    )
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


async def test_a_transaction_is_described(client: Client) -> None:
    await client.create_topic("t", 2)
    pay = await producer(client, 2, timeout_ms=12_345)
    await pay.send("t", b"x", partition=1)
    answer = await client.ask("DescribeTransactions", 0, transactional_ids=["pay", "", "nobody"])
    found, unnamed, missing = answer.transaction_states
    assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 12_345)
    assert (found.producer_id, found.producer_epoch) == (pay.producer_id, pay.epoch)
    assert [(topic.topic, topic.partitions) for topic in found.topics] == [("t", [1])]
    assert unnamed.error_code == ErrorCode.INVALID_REQUEST
    assert missing.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


@pytest.mark.parametrize("version", [0, 1])
async def test_an_admin_ends_a_hanging_transaction(client: Client, version: int) -> None:
    await client.create_topic("t")
    pay = await producer(client, 0)
    await pay.send("t", b"x")
    topics = [write_txn_markers.WritableTxnMarkerTopic(name="t", partition_indexes=[0, 9])]
    marker = write_txn_markers.WritableTxnMarker(
        producer_id=pay.producer_id,
        producer_epoch=pay.epoch,
        transaction_result=False,
        topics=topics,
        coordinator_epoch=0,
    )
    answer = await client.ask("WriteTxnMarkers", version, markers=[marker])
    codes = [partition.error_code for partition in answer.markers[0].topics[0].partitions]
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert await end_offset(client, "t", 1) == 2
    assert await read_committed(client, "t") == []
