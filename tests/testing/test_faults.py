"""Each fault as a client sees it on the wire, and that it is over when it should be."""

from __future__ import annotations

import select
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from kbroker.errors import UserError
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import offset_for_leader_epoch
from kbroker.protocol.registry import APIS, Api
from kbroker.testing import Faults, RunningBroker, run_broker
from tests.broker.batches import make_batch
from tests.broker.wire import Client, connect, fetch_members, produce_members

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
AN_HOUR = 3600.0
SERVED = [row for row in APIS if row.is_served()]

Connect = Callable[[], Awaitable[Client]]


@pytest.fixture
async def broker() -> AsyncIterator[RunningBroker]:
    async with run_broker(topics=["orders:2"]) as bootstrap:
        yield bootstrap.broker


@pytest.fixture
async def connect_to(broker: RunningBroker) -> AsyncIterator[Connect]:
    async with AsyncExitStack() as stack:

        async def connect_once() -> Client:
            return await stack.enter_async_context(connect(broker.port))

        yield connect_once


@pytest.fixture
async def client(connect_to: Connect) -> Client:
    return await connect_to()


@pytest.fixture
def faults(broker: RunningBroker) -> Faults:
    return broker.faults


def has_no_answer(client: Client) -> bool:
    """By now. Ask only after the broker has served somebody else."""
    readable, _, _ = select.select([client.stream.socket.fileno()], [], [], 0)
    return not readable


# Failing


async def test_the_next_requests_fail_and_then_no_more(client: Client, faults: Faults) -> None:
    fault = faults.fail("Produce", code="NOT_LEADER_OR_FOLLOWER", times=2)
    codes = [(await client.produce("orders", make_batch())).error_code for _ in range(3)]
    assert codes == [NOT_LEADER, NOT_LEADER, ErrorCode.NONE]
    assert fault.hits == 2


async def test_a_request_that_the_broker_knows_by_its_bytes_fails_too(client: Client, faults: Faults) -> None:
    for offset in range(3):
        assert (await client.produce("orders", make_batch(b"v"))).base_offset == offset
    with faults.fail("Produce", code=NOT_LEADER):
        assert (await client.produce("orders", make_batch(b"v"))).error_code == NOT_LEADER
    assert (await client.produce("orders", make_batch(b"v"))).base_offset == 3


async def test_what_failed_was_not_carried_out(client: Client, faults: Faults) -> None:
    faults.fail("Produce", code=ErrorCode.NOT_ENOUGH_REPLICAS)
    await client.produce("orders", make_batch())
    assert await client.read_all("orders") == []


async def test_other_apis_are_served(client: Client, faults: Faults) -> None:
    faults.fail("Produce", code="NOT_LEADER_OR_FOLLOWER")
    await client.expect_service()
    assert (await client.fetch("orders", 0)).error_code == 0


async def test_a_failing_fetch_tells_it_of_the_partition(client: Client, faults: Faults) -> None:
    faults.fail("Fetch", code="NOT_LEADER_OR_FOLLOWER")
    assert (await client.fetch("orders", 0, max_wait_ms=60_000)).error_code == NOT_LEADER
    assert (await client.fetch("orders", 0)).error_code == 0


async def test_a_failing_fetch_session_tells_it_of_the_whole(client: Client, faults: Faults) -> None:
    faults.fail("Fetch", code="FETCH_SESSION_ID_NOT_FOUND")
    response = await client.ask("Fetch", 11, **fetch_members({("orders", 0): 0}))
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_fetch_session_fails_for_partitions_that_the_request_does_not_name(
    client: Client, faults: Faults
) -> None:
    await client.produce("orders", make_batch())
    session = {"session_id": 0, "session_epoch": 0}
    opened = await client.ask("Fetch", 11, **fetch_members({("orders", 0): 0}, **session))
    faults.fail("Fetch", code="NOT_LEADER_OR_FOLLOWER")
    again = {"session_id": opened.session_id, "session_epoch": 1}
    response = await client.ask("Fetch", 11, **fetch_members({}, **again))
    assert response.error_code == 0
    assert response.responses[0].partitions[0].error_code == NOT_LEADER


async def test_a_client_that_wants_no_answers_loses_its_connection(client: Client, faults: Faults) -> None:
    faults.fail("Produce", code="NOT_LEADER_OR_FOLLOWER")
    await client.send("Produce", 9, **produce_members("orders", make_batch(), acks=0))
    assert await client.wait_closed() == b""


@pytest.mark.parametrize("api", SERVED, ids=lambda api: api.name)
async def test_every_api_can_fail_in_its_newest_version(
    api: Api, client: Client, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    assert api.serves is not None
    fault = faults.fail(api.name, code="UNKNOWN_SERVER_ERROR")
    members = {"acks": -1} if api.name == "Produce" else {}
    await client.ask(api.name, api.serves[1], **members)
    assert fault.hits == 1
    assert [line.message for line in caplog.records if line.levelname == "ERROR"] == []


async def test_faults_strike_one_client_alone_if_told_so(client: Client, faults: Faults) -> None:
    somebody_else = faults.fail("Produce", code="NOT_LEADER_OR_FOLLOWER", client_id="somebody else")
    assert (await client.produce("orders", make_batch())).error_code == 0
    assert somebody_else.hits == 0


async def test_a_fault_without_an_end_lasts_until_it_is_released(client: Client, faults: Faults) -> None:
    with faults.fail("Produce", code="NOT_LEADER_OR_FOLLOWER", times=None) as fault:
        for _ in range(3):
            assert (await client.produce("orders", make_batch())).error_code == NOT_LEADER
    assert (await client.produce("orders", make_batch())).error_code == 0
    fault.release()
    assert fault.hits == 3


async def test_clear_releases_every_fault(client: Client, faults: Faults) -> None:
    faults.fail("Produce", code="NOT_LEADER_OR_FOLLOWER", times=None)
    faults.drop("Produce", times=None)
    faults.not_leader("orders", 0)
    faults.clear()
    assert (await client.produce("orders", make_batch())).error_code == 0


# Delaying


async def test_a_delayed_answer_waits_while_others_are_served(
    client: Client, connect_to: Connect, faults: Faults
) -> None:
    fault = faults.delay("Metadata", seconds=AN_HOUR, times=1)
    await client.send("Metadata", 12, topics=[])
    await client.send("ApiVersions", 3, client_software_name="wire", client_software_version="1")
    other = await connect_to()
    assert (await other.topic_metadata("orders")).error_code == 0
    assert has_no_answer(client)
    fault.release()
    assert (await client.receive()).error_code == 0
    assert (await client.receive()).error_code == 0


async def test_a_delayed_request_is_carried_out_at_once(client: Client, connect_to: Connect, faults: Faults) -> None:
    faults.delay("Produce", seconds=AN_HOUR)
    await client.send("Produce", 9, **produce_members("orders", make_batch()))
    reader = await connect_to()
    assert (await reader.fetch("orders", 0, max_wait_ms=60_000)).high_watermark > 0
    assert has_no_answer(client)


async def test_a_delay_ends_by_itself(client: Client, faults: Faults) -> None:
    fault = faults.delay("Fetch", seconds=0.001)
    await client.produce("orders", make_batch())
    assert len(await client.read_all("orders")) > 0
    assert fault.hits > 0


async def test_an_answer_can_be_late_and_an_error(client: Client, faults: Faults) -> None:
    late = faults.delay("Produce", seconds=0.001)
    failing = faults.fail("Produce", code="NOT_LEADER_OR_FOLLOWER")
    assert (await client.produce("orders", make_batch())).error_code == NOT_LEADER
    assert (late.hits, failing.hits) == (1, 1)


async def test_a_client_that_leaves_takes_its_late_answer_with_it(
    broker: RunningBroker, connect_to: Connect, faults: Faults
) -> None:
    fault = faults.delay("Fetch", seconds=AN_HOUR)
    leaving = await connect_to()
    await leaving.produce("orders", make_batch())
    await leaving.send("Fetch", 11, **fetch_members({("orders", 0): 0}))
    await leaving.stream.aclose()
    staying = await connect_to()
    await staying.expect_service()
    fault.release()
    assert len(await staying.read_all("orders")) > 0


async def test_a_broker_stops_without_waiting_for_late_answers(
    broker: RunningBroker, client: Client, connect_to: Connect, faults: Faults
) -> None:
    faults.delay("Metadata", seconds=AN_HOUR)
    await client.send("Metadata", 12, topics=[])
    await (await connect_to()).expect_service()
    await broker.stop()
    assert (await client.receive()).error_code == 0


# Dropping


async def test_a_dropped_request_ends_its_connection_and_was_not_carried_out(
    client: Client, connect_to: Connect, faults: Faults
) -> None:
    fault = faults.drop("Produce")
    await client.send("Produce", 9, **produce_members("orders", make_batch()))
    assert await client.wait_closed() == b""
    again = await connect_to()
    assert await again.read_all("orders") == []
    assert (await again.produce("orders", make_batch())).error_code == 0
    assert fault.hits == 1


async def test_what_came_before_a_dropped_request_is_carried_out(
    client: Client, connect_to: Connect, faults: Faults
) -> None:
    frames = client.encode("Produce", 9, **produce_members("orders", make_batch()))
    faults.drop("Metadata")
    frames += client.encode("Metadata", 12, topics=[])
    await client.send_bytes(frames)
    await client.wait_closed()
    assert len(await (await connect_to()).read_all("orders")) > 0


async def test_an_answer_can_be_lost_after_the_request_was_carried_out(
    client: Client, connect_to: Connect, faults: Faults
) -> None:
    faults.drop("Produce", carried_out=True)
    await client.send("Produce", 9, **produce_members("orders", make_batch()))
    assert await client.wait_closed() == b""
    assert len(await (await connect_to()).read_all("orders")) > 0


async def test_a_request_that_waits_can_lose_its_answer_too(
    client: Client, connect_to: Connect, faults: Faults
) -> None:
    faults.drop("Fetch", carried_out=True)
    await client.send("Fetch", 11, **fetch_members({("orders", 0): 0}, max_wait_ms=60_000))
    other = await connect_to()
    await other.produce("orders", make_batch())
    assert await client.wait_closed() == b""
    await other.expect_service()


# A partition that has another leader


async def test_a_partition_without_its_leader_refuses_until_it_is_released(client: Client, faults: Faults) -> None:
    asked = offset_for_leader_epoch.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    topics = [offset_for_leader_epoch.OffsetForLeaderTopic(topic="orders", partitions=[asked])]

    async def codes() -> list[int]:
        epochs = await client.ask("OffsetForLeaderEpoch", 4, replica_id=-1, topics=topics)
        return [
            (await client.produce("orders", make_batch())).error_code,
            (await client.fetch("orders", 0, max_wait_ms=60_000)).error_code,
            (await client.list_offset("orders", -1)).error_code,
            (await client.delete_records("orders", 0)).error_code,
            epochs.topics[0].partitions[0].error_code,
        ]

    with faults.not_leader("orders", 0) as fault:
        assert await codes() == [NOT_LEADER] * 5
        assert (await client.produce("orders", make_batch(), partition=1)).error_code == 0
        assert (await client.fetch("orders", 0, partition=1)).error_code == 0
        assert fault.hits == 5
    assert await codes() == [0] * 5


async def test_who_waits_for_a_partition_learns_that_its_leader_is_gone(
    client: Client, connect_to: Connect, broker: RunningBroker, faults: Faults
) -> None:
    await client.send("Fetch", 11, **fetch_members({("orders", 0): 0}, max_wait_ms=60_000))
    await (await connect_to()).expect_service()
    faults.not_leader("orders", 0)
    assert (await client.receive()).responses[0].partitions[0].error_code == NOT_LEADER


async def test_a_partition_may_fail_with_any_code(client: Client, faults: Faults) -> None:
    with faults.fail_partition("orders", 1, code="KAFKA_STORAGE_ERROR"):
        produced = await client.produce("orders", make_batch(), partition=1)
        assert produced.error_code == ErrorCode.KAFKA_STORAGE_ERROR


# Nonsense


def test_an_api_that_is_not_served_is_named_with_its_likeliest_neighbour() -> None:
    with pytest.raises(UserError, match=r"'Produec'.*did you mean 'Produce'"):
        Faults().fail("Produec", code="NOT_LEADER_OR_FOLLOWER")


def test_a_code_that_kafka_lacks_is_named_with_its_likeliest_neighbour() -> None:
    with pytest.raises(UserError, match=r"'NOT_LEADER'.*did you mean"):
        Faults().fail("Produce", code="NOT_LEADER")


def test_a_fault_that_never_strikes_is_refused() -> None:
    with pytest.raises(UserError, match="times=0"):
        Faults().drop("Produce", times=0)
    with pytest.raises(UserError, match="seconds=-1"):
        Faults().delay("Produce", seconds=-1)


async def test_a_partition_that_is_not_there_cannot_fail(broker: RunningBroker, faults: Faults) -> None:
    with pytest.raises(UserError, match="orders-2"):
        faults.not_leader("orders", 2)


async def test_a_partition_fails_in_one_way_at_a_time(broker: RunningBroker, faults: Faults) -> None:
    faults.not_leader("orders", 0)
    with pytest.raises(UserError, match="already has a fault"):
        faults.fail_partition("orders", 0, code="KAFKA_STORAGE_ERROR")
