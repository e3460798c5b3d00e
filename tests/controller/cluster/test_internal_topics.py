"""Internal topics of a cluster: they are not created before there are enough brokers for all their replicas."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from kbroker.config.broker import BrokerConfig
from kbroker.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from kbroker.server.topics.internal_topics import InternalTopics, new_topic
from tests.controller.conftest import Sessions
from tests.controller.members import Members, OneMember, open_members


@pytest.fixture
def zookeeper_address() -> None:
    """Runs these tests on the embedded tree only."""


@pytest.fixture
async def members(sessions: Sessions) -> AsyncIterator[Members]:
    async with open_members(sessions) as opened:
        yield opened


def internal_topics(one: OneMember) -> InternalTopics:
    config = BrokerConfig.from_properties({"transaction.state.log.min.isr": "2"})
    return InternalTopics(config, one.controller, one.member)


@pytest.mark.parametrize("name", [CONSUMER_OFFSETS, TRANSACTION_STATE])
async def test_an_internal_topic_waits_for_as_many_brokers_as_it_has_replicas(
    members: Members, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = await members.start(1)
    internal = internal_topics(first)
    with caplog.at_level(logging.ERROR):
        for broker_count in (1, 2):
            await members.until_agreed(lambda image, count=broker_count: len(image.brokers) == count)  # type: ignore[misc]
            for _ in range(3):
                await internal.create(name)
                assert name not in first.image.topics
            await members.start(broker_count + 1)
    lines = [record.getMessage() for record in caplog.records if "does not meet" in record.getMessage()]
    assert [line.split("'")[1] for line in lines] == ["1", "2"]  # once for each number of brokers
    await members.until_agreed(lambda image: len(image.brokers) == 3)
    await internal.create(name)
    assert {len(partition.replicas) for partition in first.image.topics[name].partitions} == {3}


def test_a_single_node_has_one_replica() -> None:
    config = BrokerConfig.from_properties({})
    for name in (CONSUMER_OFFSETS, TRANSACTION_STATE):
        assert new_topic(name, config, is_single_node=True).replication_factor == 1
        assert new_topic(name, config, is_single_node=False).replication_factor == 3
