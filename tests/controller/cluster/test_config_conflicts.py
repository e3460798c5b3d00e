"""Two brokers change configs of one entity at the same time: neither change is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from kbroker.controller.rules.topic_rules import NewTopic
from tests.controller.conftest import Sessions
from tests.controller.members import Members, open_members
from tests.controller.unreliable_tree import open_unreliable


@pytest.fixture
def zookeeper_address() -> None:
    """Runs these tests on the embedded tree only: the test chooses when the other broker writes."""


@pytest.fixture
async def members(sessions: Sessions) -> AsyncIterator[Members]:
    async with open_members(sessions) as opened:
        yield opened


def setting(name: str, value: str) -> Callable[[Mapping[str, str]], Mapping[str, str]]:
    return lambda configs: {**configs, name: value}


BOTH = {"retention.ms": "5", "segment.ms": "7"}


async def test_a_topic_config_that_another_broker_creates_meanwhile_is_kept(
    members: Members, sessions: Sessions
) -> None:
    first = await members.start(1)
    tree = await open_unreliable(sessions)
    second = await members.start(2, tree=tree)
    await first.controller.create_topic(NewTopic("t", 1, 1))
    await members.until_agreed(lambda image: "t" in image.topics)
    await tree.delete("/config/topics/t")  # Apache Kafka creates no such node for a topic without configs
    tree.run_after(
        "get /config/topics/t", lambda: first.controller.update_topic_configs("t", setting("retention.ms", "5"))
    )
    await second.controller.update_topic_configs("t", setting("segment.ms", "7"))
    assert second.image.topics["t"].configs == BOTH
    await members.until_agreed(lambda image: image.topics["t"].configs == BOTH)


@pytest.mark.parametrize("entity", ["groups/g", "users/u/clients/c"])
async def test_an_entity_config_that_another_broker_creates_meanwhile_is_kept(
    members: Members, sessions: Sessions, entity: str
) -> None:
    first = await members.start(1)
    tree = await open_unreliable(sessions)
    second = await members.start(2, tree=tree)
    await members.until_agreed(lambda image: len(image.brokers) == 2)
    tree.run_after(
        f"get /config/{entity}", lambda: first.controller.update_entity_configs(entity, setting("retention.ms", "5"))
    )
    await second.controller.update_entity_configs(entity, setting("segment.ms", "7"))
    assert second.image.configs_of(entity) == BOTH
    await members.until_agreed(lambda image: image.configs_of(entity) == BOTH)
