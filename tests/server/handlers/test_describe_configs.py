"""DescribeConfigs: all configs of all resource types, with sources, and synonyms and documentation on request."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.config.broker import BROKER_CONFIGS
from kbroker.config.group import GROUP_CONFIGS
from kbroker.config.key import ConfigSource, ConfigType
from kbroker.config.topic import TOPIC_CONFIGS
from kbroker.protocol.acl_codes import CLUSTER_NAME, AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_configs as messages
from tests.server.conftest import StartBroker
from tests.server.handlers.harness import HandlerBroker

DESCRIBE_CONFIGS = 32
VERSIONS = range(5)
TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


async def describe(
    broker: HandlerBroker, kind: int, name: str, *keys: str, version: int = 4, **members: Any
) -> tuple[Any, dict[str, Any]]:
    resource = messages.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    response = await broker.ask(DESCRIBE_CONFIGS, version, resources=[resource], **members)
    (result,) = response.results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result, {config.name: config for config in result.configs}


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_topic_config_is_returned_with_its_source(broker: HandlerBroker, version: int) -> None:
    await broker.create_topic("orders", configs={"retention.ms": "5"})
    result, configs = await describe(broker, TOPIC, "orders", version=version)
    assert result.error_code == 0
    assert set(configs) == {name for name, key in TOPIC_CONFIGS.items() if not key.is_retired}
    assert (configs["retention.ms"].value, configs["segment.bytes"].value) == ("5", "1073741824")
    if version == 0:
        assert (configs["retention.ms"].is_default, configs["segment.bytes"].is_default) == (False, True)
    else:
        assert configs["retention.ms"].config_source == ConfigSource.DYNAMIC_TOPIC_CONFIG
        assert configs["segment.bytes"].config_source == ConfigSource.DEFAULT_CONFIG
    assert configs["retention.ms"].config_type == (ConfigType.LONG if version >= 3 else 0)
    assert not any(config.read_only or config.is_sensitive or config.synonyms for config in configs.values())


async def test_synonyms_and_documentation_are_returned_on_request(broker: HandlerBroker) -> None:
    await broker.create_topic("orders", configs={"cleanup.policy": "compact"})
    _, configs = await describe(broker, TOPIC, "orders")
    assert configs["cleanup.policy"].documentation is None
    _, configs = await describe(broker, TOPIC, "orders", include_synonyms=True, include_documentation=True)
    synonyms = [(synonym.name, synonym.value, synonym.source) for synonym in configs["cleanup.policy"].synonyms]
    assert synonyms == [("cleanup.policy", "compact", 1), ("log.cleanup.policy", "delete", 5)]
    assert all(config.documentation for config in configs.values())


async def test_unknown_config_names_are_ignored(broker: HandlerBroker) -> None:
    await broker.create_topic("orders")
    _, configs = await describe(broker, TOPIC, "orders", "retention.ms", "no.such.config")
    assert list(configs) == ["retention.ms"]


async def test_every_broker_config_is_returned_with_its_effective_value(start_broker: StartBroker) -> None:
    broker = await start_broker(num_partitions=3, listeners="PLAINTEXT://127.0.0.1:0")
    _, configs = await describe(broker, BROKER, "1", include_synonyms=True, include_documentation=True)
    assert {name for name, key in BROKER_CONFIGS.items() if not key.is_retired} | {"node.id"} == set(configs)
    assert (configs["broker.id"].value, configs["node.id"].value) == ("1", "1")
    assert configs["log.dirs"].value == broker.directory.path
    assert configs["listeners"].value == "PLAINTEXT://127.0.0.1:9092"
    assert (configs["num.partitions"].value, configs["num.partitions"].config_source) == ("3", 4)
    assert (configs["num.partitions"].read_only, configs["log.retention.ms"].read_only) == (True, False)
    assert [config.name for config in configs.values() if config.is_sensitive and config.value is not None] == []
    assert all(config.documentation for config in configs.values())


async def test_the_default_broker_resource_has_the_cluster_wide_configs(broker: HandlerBroker) -> None:
    _, configs = await describe(broker, BROKER, "")
    assert configs == {}
    await broker.controller.update_entity_configs("brokers/<default>", lambda _: {"log.retention.ms": "7"})
    _, configs = await describe(broker, BROKER, "")
    assert [(config.name, config.value, config.config_source) for config in configs.values()] == [
        ("log.retention.ms", "7", 3)
    ]


async def test_loggers_groups_and_client_metrics_are_resources_too(broker: HandlerBroker) -> None:
    _, loggers = await describe(broker, LOGGER, "1")
    assert loggers["kbroker.server.requests.dispatch"].value in ("DEBUG", "ERROR", "FATAL", "INFO", "TRACE", "WARN")
    assert {config.config_source for config in loggers.values()} == {ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG}
    _, group = await describe(broker, GROUP, "billing", include_synonyms=True)
    assert set(group) == set(GROUP_CONFIGS)
    assert group["consumer.session.timeout.ms"].value == "45000"
    _, metrics = await describe(broker, CLIENT_METRICS, "slow-ones")
    assert {name: config.value for name, config in metrics.items()} == {
        "interval.ms": "300000",
        "match": "",
        "metrics": "",
    }


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "no topic!", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (LOGGER, "2", ErrorCode.INVALID_REQUEST),
        (LOGGER, "", ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "", ErrorCode.INVALID_REQUEST),
        (99, "x", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_resource_that_does_not_exist_is_refused(
    broker: HandlerBroker, kind: int, name: str, code: ErrorCode
) -> None:
    result, configs = await describe(broker, kind, name)
    assert (result.error_code, configs) == (code, {})
    assert result.error_message


async def test_one_refused_resource_does_not_affect_the_others(broker: HandlerBroker) -> None:
    await broker.create_topic("orders")
    names = ("nowhere", "orders")
    resources = [messages.DescribeConfigsResource(resource_type=TOPIC, resource_name=name) for name in names]
    response = await broker.ask(DESCRIBE_CONFIGS, 4, resources=resources)
    assert [(result.error_code, len(result.configs) > 0) for result in response.results] == [(3, False), (0, True)]


async def test_describing_configs_needs_a_permission(broker: HandlerBroker) -> None:
    await broker.create_topic("orders")
    broker.allow((AclOperation.DESCRIBE_CONFIGS, "invoices"))
    for kind, name, code in (
        (TOPIC, "orders", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (BROKER, "1", ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (GROUP, "billing", ErrorCode.GROUP_AUTHORIZATION_FAILED),
    ):
        result, configs = await describe(broker, kind, name)
        assert (result.error_code, configs) == (code, {})
    broker.allow((AclOperation.DESCRIBE_CONFIGS, CLUSTER_NAME))
    result, _ = await describe(broker, BROKER, "1")
    assert result.error_code == 0
