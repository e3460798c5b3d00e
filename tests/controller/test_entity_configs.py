"""Configs of brokers and groups and quotas of users: Kafka 3.9's nodes, kept over restarts, in effect at once."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
import trio

from kbroker.config.broker import BrokerConfig
from kbroker.controller import config_entities
from kbroker.controller.changes import EntityConfigsChanged, TopicConfigsChanged
from kbroker.controller.controller import ConfigsUpdate, Controller
from kbroker.controller.rules.topic_rules import NewTopic
from kbroker.controller.trees.tree import Tree
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from tests.controller.conftest import Sessions
from tests.controller.test_controller import ENDPOINTS, Recorder, StoppedClock, restarted, started


def to(**configs: str) -> ConfigsUpdate:
    return lambda _: {name.replace("_", "."): text for name, text in configs.items()}


async def node(tree: Tree, path: str) -> object:
    return json.loads((await tree.get(path)).data)


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        (("brokers", "1"), "brokers/1"),
        (("brokers", None), "brokers/<default>"),
        (("users", "User with/all+*~%ü"), "users/User%20with%2Fall%2B%2A%7E%25%C3%BC"),
        (("users", "<default>"), "users/%3Cdefault%3E"),
        (("users", "alice", "clients", None), "users/alice/clients/<default>"),
        (("groups", ".."), "groups/%2E%2E"),
        (("clients", "a.b-c_d"), "clients/a.b-c_d"),
    ],
)
def test_an_entity_has_the_path_that_kafka_gives_it(parts: tuple[str | None, ...], path: str) -> None:
    assert config_entities.entity_path(*parts) == path
    assert [item for part in config_entities.split_entity_path(path) for item in part] == list(parts)


async def test_configs_are_kept_in_kafkas_nodes_and_announced(sessions: Sessions, tree: Tree) -> None:
    controller = await started(tree)
    await controller.update_entity_configs("users/alice/clients/app", to(producer_byte_rate="5"))
    await controller.update_entity_configs("groups/billing", to(share_isolation_level="read_committed"))
    assert await node(tree, "/config/users/alice/clients/app") == {"version": 1, "config": {"producer.byte.rate": "5"}}
    changes = [await node(tree, f"/config/changes/{name}") for name in await tree.children("/config/changes")]
    assert changes == [
        {"version": 2, "entity_path": "users/alice/clients/app"},
        {"version": 2, "entity_path": "groups/billing"},
    ]
    before = controller.image.entity_configs
    assert (await restarted(sessions, tree)).image.entity_configs == before
    assert set(before) == {"users/alice/clients/app", "groups/billing"}


async def test_an_entity_without_configs_has_no_node_unless_it_has_children(tree: Tree) -> None:
    controller = await started(tree)
    await controller.update_entity_configs("users/alice", to(consumer_byte_rate="1"))
    await controller.update_entity_configs("users/alice/clients/app", to(consumer_byte_rate="2"))
    await controller.update_entity_configs("users/alice", to())
    assert await node(tree, "/config/users/alice") == {"version": 1, "config": {}}
    assert controller.image.entity_configs == {"users/alice/clients/app": {"consumer.byte.rate": "2"}}
    await controller.update_entity_configs("users/alice/clients/app", to())
    assert await tree.exists("/config/users/alice/clients/app") is None
    assert controller.image.entity_configs == {}


async def test_each_update_sees_the_one_before_it(tree: Tree) -> None:
    controller = await started(tree)

    def more(current: Mapping[str, str]) -> dict[str, str]:
        return {"count": str(int(current.get("count", 0)) + 1)}

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(controller.update_entity_configs, "groups/g", more)
    assert controller.image.configs_of("groups/g") == {"count": "5"}


async def test_validation_refusals_and_equal_configs_write_nothing(tree: Tree) -> None:
    controller = await started(tree)
    await controller.update_entity_configs("groups/g", to(a="1"))
    listener = Recorder()
    controller.add_listener(listener)
    await controller.update_entity_configs("groups/g", to(a="2"), validate_only=True)
    await controller.update_entity_configs("groups/g", to(a="1"))

    def refuse(_: Mapping[str, str]) -> dict[str, str]:
        raise Refusal(ErrorCode.INVALID_CONFIG, "no")

    with pytest.raises(Refusal):
        await controller.update_entity_configs("groups/g", refuse)
    assert (listener.changes, controller.image.configs_of("groups/g")) == ([], {"a": "1"})


async def test_a_brokers_configs_change_its_config_and_the_topics_that_fall_back_to_it(
    sessions: Sessions, tree: Tree
) -> None:
    config = BrokerConfig.from_properties({})
    controller = Controller(tree, broker_id=1, config=config, clock=StoppedClock(), random_bytes=bytes)
    await controller.start(ENDPOINTS)
    topic = await controller.create_topic(NewTopic("orders", configs={"segment.ms": "5"}))
    listener = Recorder()
    controller.add_listener(listener)
    await controller.update_entity_configs("brokers/<default>", to(log_retention_ms="7"))
    assert (config.log_retention_ms, config.topic_defaults.retention_ms) == (7, 7)
    assert listener.take() == [
        EntityConfigsChanged("brokers/<default>", {"log.retention.ms": "7"}),
        TopicConfigsChanged("orders", topic.configs),
    ]
    await controller.update_entity_configs("brokers/1", to(producer_id_expiration_ms="9"))
    assert config.producer_id_expiration_ms == 9
    assert [type(change) for change in listener.take()] == [EntityConfigsChanged]
    await controller.update_entity_configs("brokers/2", to(log_retention_ms="1"))
    assert config.log_retention_ms == 7
    again = await restarted(sessions, tree)
    assert again._config.producer_id_expiration_ms == 9
    assert again._config.topic_defaults.retention_ms == 7


async def test_an_update_gets_the_topics_current_configs(tree: Tree) -> None:
    controller = await started(tree)
    await controller.create_topic(NewTopic("orders", configs={"segment.ms": "5"}))
    await controller.update_topic_configs("orders", lambda current: {**current, "retention.ms": "6"})
    assert controller.image.topics["orders"].configs == {"segment.ms": "5", "retention.ms": "6"}


async def test_a_missing_config_node_of_a_topic_is_created(sessions: Sessions, tree: Tree) -> None:
    controller = await started(tree)
    await controller.create_topic(NewTopic("orders"))
    await tree.delete("/config/topics/orders")
    await controller.alter_topic_configs("orders", {"segment.ms": "5"})
    assert (await restarted(sessions, tree)).image.topics["orders"].configs == {"segment.ms": "5"}
