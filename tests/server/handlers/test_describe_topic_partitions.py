"""DescribeTopicPartitions: sorted by name, in pages, without null lists."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.names import ZERO_UUID
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_topic_partitions as messages
from tests.server.conftest import StartBroker
from tests.server.handlers.harness import HandlerBroker

DESCRIBE_TOPIC_PARTITIONS = 75
Page = tuple[list[tuple[str, list[int]]], tuple[str, int] | None]


async def ask(broker: HandlerBroker, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    where = None if cursor is None else messages.Cursor(topic_name=cursor[0], partition_index=cursor[1])
    return await broker.ask(
        DESCRIBE_TOPIC_PARTITIONS,
        0,
        topics=[messages.TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=where,
    )


async def page(broker: HandlerBroker, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Page:
    response = await ask(broker, *names, limit=limit, cursor=cursor)
    following = response.next_cursor
    return (
        [(topic.name, [partition.partition_index for partition in topic.partitions]) for topic in response.topics],
        None if following is None else (following.topic_name, following.partition_index),
    )


@pytest.fixture
async def stocked(broker: HandlerBroker) -> HandlerBroker:
    for name, partitions in (("c", 1), ("a", 2), ("b", 2)):
        await broker.create_topic(name, partitions)
    return broker


async def test_a_partition_is_described_with_leader_and_replicas_and_empty_lists(stocked: HandlerBroker) -> None:
    (topic,) = (await ask(stocked, "c")).topics
    assert (topic.error_code, topic.name, topic.is_internal) == (0, "c", False)
    assert topic.topic_id == stocked.image.topics["c"].id
    assert topic.topic_authorized_operations == 3576
    (partition,) = topic.partitions
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (0, 1, 0)
    assert (list(partition.replica_nodes), list(partition.isr_nodes)) == ([1], [1])
    assert partition.eligible_leader_replicas == partition.last_known_elr == partition.offline_replicas == []


async def test_topics_are_sorted_and_without_duplicates(stocked: HandlerBroker) -> None:
    everything = [("a", [0, 1]), ("b", [0, 1]), ("c", [0])]
    assert await page(stocked) == (everything, None)
    assert await page(stocked, "c", "a", "b", "a") == (everything, None)


@pytest.mark.parametrize("names", [(), ("a", "b", "c")])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 0, -3])
async def test_pages_of_any_size_have_every_partition_once(
    stocked: HandlerBroker, names: tuple[str, ...], limit: int
) -> None:
    seen: list[tuple[str, int]] = []
    cursor: tuple[str, int] | None = None
    for _ in range(6):
        topics, cursor = await page(stocked, *names, limit=limit, cursor=cursor)
        partitions = [(name, index) for name, indexes in topics for index in indexes]
        assert 0 < len(partitions) <= max(limit, 1)
        seen += partitions
        if cursor is None:
            break
    assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("c", 0)]


async def test_the_broker_limits_pages_too(start_broker: StartBroker) -> None:
    broker = await start_broker(max_request_partition_size_limit=2)
    await broker.create_topic("a", 3)
    assert await page(broker, "a") == ([("a", [0, 1])], ("a", 2))


async def test_a_cursor_past_the_end_of_its_topic_continues_with_the_next(stocked: HandlerBroker) -> None:
    assert await page(stocked, cursor=("a", 200)) == ([("a", []), ("b", [0, 1]), ("c", [0])], None)
    assert await page(stocked, cursor=("aa", 1)) == ([("b", [0, 1]), ("c", [0])], None)


@pytest.mark.parametrize("cursor", [("zz", 0), ("a", -1)])
async def test_an_invalid_cursor_is_refused(stocked: HandlerBroker, cursor: tuple[str, int]) -> None:
    response = await ask(stocked, "a", "b", cursor=cursor)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [("a", 42), ("b", 42)]


async def test_unknown_topics_are_reported_in_name_order(stocked: HandlerBroker) -> None:
    response = await ask(stocked, "nowhere", "a", "no topic!")
    assert [(topic.name, topic.error_code, topic.topic_id == ZERO_UUID) for topic in response.topics] == [
        ("a", 0, False),
        ("no topic!", ErrorCode.INVALID_TOPIC_EXCEPTION, True),
        ("nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True),
    ]


async def test_unauthorized_topics_are_hidden_unless_named(stocked: HandlerBroker) -> None:
    stocked.allow((AclOperation.DESCRIBE, "b"))
    assert await page(stocked) == ([("b", [0, 1])], None)
    response = await ask(stocked, "a", "b", "nowhere")
    assert [(topic.name, topic.error_code) for topic in response.topics] == [("b", 0), ("a", 29), ("nowhere", 29)]
    assert response.topics[0].topic_authorized_operations == 1 << AclOperation.DESCRIBE
