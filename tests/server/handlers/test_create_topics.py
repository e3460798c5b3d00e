"""CreateTopics: with counts or assignments, with configs, or validate-only; errors with Kafka's codes."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.config.key import ConfigSource
from kbroker.names import ZERO_UUID
from kbroker.protocol.acl_codes import CLUSTER_NAME, AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import create_topics as messages
from tests.server.conftest import StartBroker
from tests.server.handlers.harness import HandlerBroker

CREATE_TOPICS = 19
VERSIONS = range(8)


def topic(name: str, partitions: int = 1, replicas: int = 1, **configs: str | None) -> Any:
    return messages.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[
            messages.CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
        ],
    )


def assigned(name: str, *assignments: tuple[int, list[int]], partitions: int = -1, replicas: int = -1) -> Any:
    made = topic(name, partitions, replicas)
    made.assignments = [
        messages.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers) for index, brokers in assignments
    ]
    return made


async def create(broker: HandlerBroker, *topics: Any, version: int = 7, **members: Any) -> list[Any]:
    response = await broker.ask(CREATE_TOPICS, version, topics=list(topics), **members)
    results: list[Any] = response.topics
    return results


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_topic_has_leader_and_log_when_the_response_is_sent(broker: HandlerBroker, version: int) -> None:
    (result,) = await create(broker, topic("orders", 3), version=version)
    created = broker.image.topics["orders"]
    assert (result.name, result.error_code, result.error_message or None) == ("orders", 0, None)
    assert [partition.leader for partition in created.partitions] == [1, 1, 1]
    assert broker.partitions.get("orders", 2) is not None
    assert result.topic_id == (created.id if version >= 7 else ZERO_UUID)
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)


async def test_from_v5_on_every_config_is_returned_with_its_source(start_broker: StartBroker) -> None:
    broker = await start_broker(log_retention_hours=1)
    for version in VERSIONS:
        wish = topic(f"orders{version}", cleanup_policy="compact")
        (result,) = await create(broker, wish, version=version)
        configs = {config.name: config for config in result.configs}
        if version < 5:
            assert configs == {}
            continue
        assert (configs["cleanup.policy"].value, configs["cleanup.policy"].config_source) == (
            "compact",
            ConfigSource.DYNAMIC_TOPIC_CONFIG,
        )
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == (
            "3600000",
            ConfigSource.STATIC_BROKER_CONFIG,
        )
        assert configs["segment.bytes"].config_source == ConfigSource.DEFAULT_CONFIG
        assert not any(config.read_only or config.is_sensitive for config in result.configs)


async def test_minus_one_means_the_default(start_broker: StartBroker) -> None:
    broker = await start_broker(num_partitions=4)
    (result,) = await create(broker, topic("orders", -1, -1))
    assert (result.num_partitions, result.replication_factor) == (4, 1)


async def test_validate_only_creates_nothing(broker: HandlerBroker) -> None:
    for version in VERSIONS[1:]:
        results = await create(broker, topic("good", 2), topic("bad/name"), version=version, validate_only=True)
        assert [result.error_code for result in results] == [0, ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert results[0].num_partitions == 2
    assert broker.image.topics == {}


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        (topic("there"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (topic("the.re_"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("orders", 0), ErrorCode.INVALID_PARTITIONS),
        (topic("orders", -2), ErrorCode.INVALID_PARTITIONS),
        (topic("orders", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("orders", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("orders", no_such_config="1"), ErrorCode.INVALID_CONFIG),
        (topic("orders", retention_ms="long"), ErrorCode.INVALID_CONFIG),
        (topic("orders", retention_ms=None), ErrorCode.INVALID_CONFIG),
        (assigned("orders", (0, [1]), partitions=1), ErrorCode.INVALID_REQUEST),
        (assigned("orders", (0, [1]), replicas=1), ErrorCode.INVALID_REQUEST),
        (assigned("orders", (0, [9])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned("orders", (0, [1, 1])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned("orders", (1, [1])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned("orders", (0, [1]), (0, [1])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_an_invalid_topic_is_refused_and_the_others_are_created(
    broker: HandlerBroker, wish: Any, code: ErrorCode
) -> None:
    await broker.create_topic("there")
    await broker.create_topic("the_re.")
    refused, created = await create(broker, wish, topic("fine"))
    assert (refused.name, refused.error_code, created.error_code) == (wish.name, code, 0)
    assert refused.error_message
    assert (refused.topic_id, refused.num_partitions, refused.replication_factor) == (ZERO_UUID, -1, -1)
    assert refused.configs == []  # not null: Java's admin client fails on null
    assert set(broker.image.topics) == {"there", "the_re.", "fine"}


async def test_an_assignment_of_replicas_is_used(broker: HandlerBroker) -> None:
    (result,) = await create(broker, assigned("orders", (1, [1]), (0, [1])))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 2, 1)


async def test_a_topic_named_twice_gets_one_error(broker: HandlerBroker) -> None:
    for version in VERSIONS:
        results = await create(broker, topic("twice"), topic("once"), topic("twice", 2), version=version)
        assert {result.name: result.error_code for result in results} == {
            "twice": ErrorCode.INVALID_REQUEST,
            "once": 0,
        }
        assert len(results) == 2
        await broker.controller.delete_topic(name="once")
    assert broker.image.topics == {}


async def test_creation_and_the_configs_in_the_response_need_permissions(broker: HandlerBroker) -> None:
    broker.allow((AclOperation.CREATE, "a"), (AclOperation.DESCRIBE_CONFIGS, "b"))
    first, second = await create(broker, topic("a"), topic("b"))
    assert (first.error_code, first.topic_config_error_code) == (0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert (first.configs, first.num_partitions) == ([], -1)
    assert first.topic_id == broker.image.topics["a"].id
    assert second.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    broker.allow((AclOperation.CREATE, CLUSTER_NAME), (AclOperation.DESCRIBE_CONFIGS, "b"))
    (second,) = await create(broker, topic("b", 2))
    assert (second.error_code, second.topic_config_error_code, second.num_partitions) == (0, 0, 2)


async def test_an_unexpected_error_is_reported_for_each_topic(
    broker: HandlerBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.controller, "create_topics", None)
    for version in VERSIONS:
        results = await create(broker, topic("a"), topic("b"), version=version)
        assert [result.error_code for result in results] == [ErrorCode.UNKNOWN_SERVER_ERROR] * 2
    assert broker.dispatch.bugs == len(VERSIONS)
