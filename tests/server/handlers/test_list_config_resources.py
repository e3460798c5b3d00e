"""ListConfigResources: resources with configs, by type."""

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
    return [(resource.resource_type, resource.resource_name) for resource in response.config_resources]


async def test_an_empty_list_of_types_means_all(stocked: HandlerBroker) -> None:
    assert await listed(stocked) == [(2, "orders"), (4, "1"), (8, "1"), (16, "slow-ones"), (32, "billing/2")]
    assert await listed(stocked, 32, 2) == [(32, "billing/2"), (2, "orders")]


async def test_v0_lists_client_metrics_only(stocked: HandlerBroker) -> None:
    assert await listed(stocked, version=0) == [(16, "slow-ones")]


async def test_an_unknown_type_is_refused(broker: HandlerBroker) -> None:
    response = await broker.ask(LIST_CONFIG_RESOURCES, 1, resource_types=[2, 99])
    assert (response.error_code, response.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])


async def test_listing_resources_needs_a_permission(broker: HandlerBroker) -> None:
    broker.allow()
    response = await broker.ask(LIST_CONFIG_RESOURCES, 1, resource_types=[])
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
