"""ListConfigResources: what has configs, by type."""

from __future__ import annotations

import pytest

from kbroker.protocol.error_codes import ErrorCode
from tests.server.handlers.harness import HandlerBroker

LIST_CONFIG_RESOURCES = 74


@pytest.fixture
async def stocked(broker: HandlerBroker) -> HandlerBroker:
    await broker.create_topic("orders")
    for entity in ("groups/billing%2F2", "client-metrics/slow-ones", "users/alice", "brokers/1"):
        await broker.controller.update_entity_configs(entity, lambda _: {"any": "1"})
    return broker


async def listed(broker: HandlerBroker, *types: int, version: int = 1) -> list[tuple[int, str]]:
    response = await broker.ask(LIST_CONFIG_RESOURCES, version, resource_types=list(types))
    assert response.error_code == 0
    return [(each.resource_type, each.resource_name) for each in response.config_resources]


async def test_every_type_is_listed_unless_some_are_chosen(stocked: HandlerBroker) -> None:
    assert await listed(stocked) == [(2, "orders"), (4, "1"), (8, "1"), (16, "slow-ones"), (32, "billing/2")]
    assert await listed(stocked, 32, 2) == [(32, "billing/2"), (2, "orders")]


async def test_the_first_version_knows_client_metrics_alone(stocked: HandlerBroker) -> None:
    assert await listed(stocked, version=0) == [(16, "slow-ones")]


async def test_a_type_that_nobody_knows_is_refused(broker: HandlerBroker) -> None:
    response = await broker.ask(LIST_CONFIG_RESOURCES, 1, resource_types=[2, 99])
    assert (response.error_code, response.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])


async def test_who_may_not_describe_configs_sees_none(broker: HandlerBroker) -> None:
    broker.allow()
    response = await broker.ask(LIST_CONFIG_RESOURCES, 1, resource_types=[])
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
