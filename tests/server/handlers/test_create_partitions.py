"""CreatePartitions: partitions placed by the broker or assigned; errors with Kafka's codes."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import create_partitions as messages
from tests.server.handlers.harness import HandlerBroker

CREATE_PARTITIONS = 37


def wish(name: str, count: int, *assignments: list[int]) -> Any:
    assigned = [messages.CreatePartitionsAssignment(broker_ids=brokers) for brokers in assignments]
    return messages.CreatePartitionsTopic(name=name, count=count, assignments=assigned or None)


async def create(broker: HandlerBroker, *topics: Any, version: int = 3, **members: Any) -> list[Any]:
    response = await broker.ask(CREATE_PARTITIONS, version, topics=list(topics), timeout_ms=1000, **members)
    results: list[Any] = response.results
    return results


@pytest.mark.parametrize("version", range(4))
async def test_new_partitions_have_leader_and_log_when_the_response_is_sent(
    broker: HandlerBroker, version: int
) -> None:
    await broker.create_topic("orders", 2)
    (result,) = await create(broker, wish("orders", 4), version=version)
    assert (result.name, result.error_code, result.error_message) == ("orders", 0, None)
    assert [partition.leader for partition in broker.image.topics["orders"].partitions] == [1, 1, 1, 1]
    assert broker.partitions.get("orders", 3) is not None


async def test_new_partitions_may_be_assigned(broker: HandlerBroker) -> None:
    await broker.create_topic("orders")
    (result,) = await create(broker, wish("orders", 3, [1], [1]))
    assert result.error_code == 0
    assert len(broker.image.topics["orders"].partitions) == 3


async def test_validate_only_adds_nothing(broker: HandlerBroker) -> None:
    await broker.create_topic("orders")
    good, bad = await create(broker, wish("orders", 5), wish("nowhere", 5), validate_only=True)
    assert (good.error_code, bad.error_code) == (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert len(broker.image.topics["orders"].partitions) == 1


@pytest.mark.parametrize(
    ("wished", "code", "reason"),
    [
        (wish("orders", 3), ErrorCode.INVALID_PARTITIONS, "already has 3"),
        (wish("orders", 2), ErrorCode.INVALID_PARTITIONS, "would not be an increase"),
        (wish("orders", -1), ErrorCode.INVALID_PARTITIONS, "would not be an increase"),
        (
            wish("orders", 5, [1]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "add 2 additional partition(s), but only 1 assignment(s)",
        ),
        (wish("orders", 4, [2]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 2, but no such broker is registered"),
        (wish("orders", 4, []), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "an empty replica list"),
        (wish("orders", 4, [1, 1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the broker 1 more than once"),
        (wish("orders", 20_000), ErrorCode.POLICY_VIOLATION, "Excessively large number"),
        (wish("nowhere", 4), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "nowhere"),
    ],
)
async def test_invalid_requests_get_kafkas_error_code(
    broker: HandlerBroker, wished: Any, code: ErrorCode, reason: str
) -> None:
    await broker.create_topic("orders", 3)
    (result,) = await create(broker, wished)
    assert result.error_code == code
    assert reason in result.error_message
    assert len(broker.image.topics["orders"].partitions) == 3


async def test_a_topic_named_twice_gets_one_error_and_the_others_grow(broker: HandlerBroker) -> None:
    await broker.create_topic("orders")
    await broker.create_topic("invoices")
    results = await create(broker, wish("orders", 2), wish("invoices", 2), wish("orders", 3))
    assert [(result.name, result.error_code) for result in results] == [
        ("orders", ErrorCode.INVALID_REQUEST),
        ("invoices", 0),
    ]
    assert len(broker.image.topics["orders"].partitions) == 1


async def test_adding_partitions_needs_a_permission(broker: HandlerBroker) -> None:
    await broker.create_topic("orders")
    await broker.create_topic("invoices")
    broker.allow((AclOperation.ALTER, "invoices"))
    results = await create(broker, wish("orders", 2), wish("invoices", 2))
    assert [result.error_code for result in results] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0]
