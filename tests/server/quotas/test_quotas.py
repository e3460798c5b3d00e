"""Throttling: the throttle time in responses, and muting of the connection for that time."""

from __future__ import annotations

import itertools
from typing import Any, cast

import pytest

from kbroker.protocol.compiler.load import codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.headers import REQUEST_HEADER
from kbroker.protocol.messages import create_partitions, create_topics, delete_topics, fetch, produce
from kbroker.protocol.registry import api
from kbroker.server.requests.fetch_session import FetchSessions
from kbroker.server.wire.deadlines import Deadlines
from kbroker.server.wire.request_slot import RequestSlot
from tests.log.batches import make_batch
from tests.server.handlers.harness import HandlerBroker, Peer, parse_response

PRODUCE, FETCH, METADATA, API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = 0, 1, 3, 18, 19, 20, 37
THROTTLED = ErrorCode.THROTTLING_QUOTA_EXCEEDED


async def limit(broker: HandlerBroker, entity: str = "clients/me", **quotas: object) -> None:
    texts = {name: str(value) for name, value in quotas.items()}
    await broker.controller.update_entity_configs(entity, lambda _: texts)


async def send(broker: HandlerBroker, key: int, version: int, /, *, expects_answer: bool = True, **members: Any) -> Any:
    """Returns the response, and for how many seconds the connection is muted."""
    asked = api(key)
    header = REQUEST_HEADER(request_api_key=key, request_api_version=version, correlation_id=77, client_id="me")
    frame = codec(REQUEST_HEADER, asked.request_header_version(version)).to_bytes(header)
    frame += codec(asked.request, version).to_bytes(asked.request(**members))
    peer = Peer("PLAINTEXT")
    slot = RequestSlot(cast(Any, peer))
    broker.dispatch.handle(cast(Any, peer), memoryview(bytearray(frame)), slot)
    broker.context.run.write()
    await peer.answered.wait()
    assert slot.parts is not None
    parts = [part if isinstance(part, bytes) else cast(Any, part).read() for part in slot.parts]
    answer = parse_response(key, version, b"".join(parts)) if expects_answer else None
    return answer, peer.muted_seconds


def produced(size: int, *, acks: int = 1) -> dict[str, Any]:
    partition = produce.PartitionProduceData(index=0, records=make_batch(b"x" * size))
    return {
        "acks": acks,
        "timeout_ms": 1000,
        "topic_data": [produce.TopicProduceData(name="orders", partition_data=[partition])],
    }


def fetched(*, max_bytes: int = 10**6, min_bytes: int = 1, epoch: int = -1, session: int = 0) -> dict[str, Any]:
    partition = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10**6)
    return {
        "max_wait_ms": 0,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "session_id": session,
        "session_epoch": epoch,
        "topics": [fetch.FetchTopic(topic="orders", partitions=[partition])],
    }


@pytest.fixture
async def orders(broker: HandlerBroker) -> HandlerBroker:
    broker.context.fetch_sessions = FetchSessions(10, itertools.count(7).__next__, broker.clock)
    broker.context.deadlines = Deadlines()
    await broker.create_topic("orders")
    return broker


async def test_without_quotas_no_route_knows_of_them(orders: HandlerBroker) -> None:
    await send(orders, PRODUCE, 9, **produced(100_000))
    assert all(route.quotas is None for route in orders.dispatch._routes.values())
    await limit(orders, producer_byte_rate=1)
    _, muted = await send(orders, PRODUCE, 9, **produced(10))
    assert muted > 0
    await limit(orders)
    assert orders.dispatch._routes == {}
    _, muted = await send(orders, PRODUCE, 9, **produced(10))
    assert muted == 0


async def test_a_producer_over_its_quota_is_told_to_wait_and_is_not_read(orders: HandlerBroker) -> None:
    await limit(orders, producer_byte_rate=1000)
    answer, muted = await send(orders, PRODUCE, 9, **produced(9000))
    assert (answer.throttle_time_ms, muted) == (0, 0)
    answer, muted = await send(orders, PRODUCE, 9, **produced(9000))
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert 8000 < answer.throttle_time_ms < 9000  # 18 of 10 KB, and some bytes around them
    assert muted == answer.throttle_time_ms / 1000
    orders.clock.seconds = 30
    answer, muted = await send(orders, PRODUCE, 9, **produced(9000))
    assert muted == 0


async def test_a_producer_that_wants_no_answers_is_not_read_either(orders: HandlerBroker) -> None:
    await limit(orders, producer_byte_rate=1000)
    _, muted = await send(orders, PRODUCE, 9, expects_answer=False, **produced(19_000, acks=0))
    assert 9 < muted < 10


async def test_versions_without_a_place_for_it_just_wait(orders: HandlerBroker) -> None:
    await limit(orders, request_percentage=0.0001)
    orders.clock.ticks = 0.1
    _, muted = await send(orders, API_VERSIONS, 0)
    assert muted == 1


async def test_a_consumer_over_its_quota_gets_no_records_and_they_do_not_count(orders: HandlerBroker) -> None:
    await send(orders, PRODUCE, 9, **produced(6000))
    await limit(orders, "users/ANONYMOUS", consumer_byte_rate=1000)
    answer, muted = await send(orders, FETCH, 11, **fetched())
    assert answer.throttle_time_ms == 0
    assert len(answer.responses[0].partitions[0].records) > 6000
    for _ in range(2):
        answer, muted = await send(orders, FETCH, 11, **fetched())
        assert 2000 < answer.throttle_time_ms < 3000
        assert muted == answer.throttle_time_ms / 1000
        assert answer.responses == []
    orders.clock.seconds = 12
    answer, muted = await send(orders, FETCH, 11, **fetched())
    assert muted == 0


async def test_a_throttled_fetch_begins_no_session_and_keeps_one(orders: HandlerBroker) -> None:
    await send(orders, PRODUCE, 9, **produced(6000))
    await limit(orders, consumer_byte_rate=1000)
    answer, _ = await send(orders, FETCH, 11, **fetched(epoch=0))
    assert (answer.session_id, answer.throttle_time_ms) == (7, 0)
    answer, _ = await send(orders, FETCH, 11, **fetched(epoch=1, session=7))
    assert (answer.session_id, answer.error_code, answer.responses) == (7, 0, [])
    assert answer.throttle_time_ms > 0
    answer, _ = await send(orders, FETCH, 11, **fetched(epoch=2, session=7))
    assert (answer.session_id, answer.error_code) == (7, 0)
    answer, _ = await send(orders, FETCH, 11, **fetched(epoch=0))
    assert answer.session_id == 0
    answer, _ = await send(orders, FETCH, 11, **fetched(epoch=1, session=8))
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_fetch_takes_no_more_than_a_whole_window_allows(orders: HandlerBroker) -> None:
    for _ in range(5):
        await send(orders, PRODUCE, 9, **produced(3000))
    await limit(orders, consumer_byte_rate=1000)
    answer, muted = await send(orders, FETCH, 11, **fetched(min_bytes=10**6))
    assert muted == 0 or answer.throttle_time_ms < 100
    await limit(orders, consumer_byte_rate=2000)
    answer, muted = await send(orders, FETCH, 11, **fetched(min_bytes=10**6))
    assert muted == 0
    assert 15_000 < len(answer.responses[0].partitions[0].records) <= 20_000


async def test_time_is_charged_for_any_request_and_the_wait_is_a_window_at_most(orders: HandlerBroker) -> None:
    await limit(orders, request_percentage=1)
    answer, muted = await send(orders, METADATA, 9, topics=None)
    assert (answer.throttle_time_ms, muted) == (0, 0)
    orders.clock.ticks = 0.2  # each look at the clock
    for key, version, members in ((METADATA, 9, {"topics": None}), (API_VERSIONS, 2, {}), (PRODUCE, 9, produced(1))):
        answer, muted = await send(orders, key, version, **members)
        assert (answer.throttle_time_ms, muted) == (1000, 1)
    answer, muted = await send(orders, FETCH, 11, **fetched())
    assert (answer.throttle_time_ms, muted, answer.responses) == (1000, 1, [])


def topics(*names: str, partitions: int = 10) -> dict[str, Any]:
    made = [create_topics.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names]
    return {"topics": made, "timeout_ms": 1000}


async def test_topics_that_come_too_fast_are_refused(orders: HandlerBroker) -> None:
    await limit(orders, controller_mutation_rate=1)
    answer, muted = await send(orders, CREATE_TOPICS, 7, **topics("a", "b", "c", "orders"))
    assert [result.error_code for result in answer.topics] == [0, 0, THROTTLED, ErrorCode.TOPIC_ALREADY_EXISTS]
    assert answer.throttle_time_ms == 9000  # 20 of 11
    assert muted == 9
    assert orders.image.topic("c") is None
    answer, _ = await send(
        orders,
        CREATE_PARTITIONS,
        3,
        topics=[create_partitions.CreatePartitionsTopic(name="a", count=12, assignments=None)],
    )
    assert [result.error_code for result in answer.results] == [THROTTLED]
    answer, _ = await send(orders, DELETE_TOPICS, 6, topics=[delete_topics.DeleteTopicState(name="a")])
    assert [result.error_code for result in answer.responses] == [THROTTLED]
    orders.clock.seconds = 9
    answer, muted = await send(orders, DELETE_TOPICS, 6, topics=[delete_topics.DeleteTopicState(name="a")])
    assert [result.error_code for result in answer.responses] == [0]
    assert muted == 0


async def test_older_clients_may_change_topics_and_wait_afterwards(orders: HandlerBroker) -> None:
    await limit(orders, controller_mutation_rate=1)
    answer, muted = await send(orders, CREATE_TOPICS, 5, **topics("a", "b"))
    assert [result.error_code for result in answer.topics] == [0, 0]
    assert (answer.throttle_time_ms, muted) == (9000, 9)
    answer, muted = await send(
        orders,
        CREATE_PARTITIONS,
        2,
        topics=[create_partitions.CreatePartitionsTopic(name="a", count=12, assignments=None)],
    )
    assert [result.error_code for result in answer.results] == [0]
    assert muted == 11
    answer, muted = await send(orders, DELETE_TOPICS, 4, topic_names=["a"])
    assert [result.error_code for result in answer.responses] == [0]
    assert muted == 23


async def test_what_is_not_in_order_costs_nothing(orders: HandlerBroker) -> None:
    await limit(orders, controller_mutation_rate=1)
    for _ in range(3):
        answer, muted = await send(orders, CREATE_TOPICS, 7, **topics("orders", partitions=100))
        assert [result.error_code for result in answer.topics] == [ErrorCode.TOPIC_ALREADY_EXISTS]
        assert muted == 0
