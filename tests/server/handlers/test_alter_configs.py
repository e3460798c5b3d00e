"""IncrementalAlterConfigs and AlterConfigs: validated completely, written once, in effect when the response is sent."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import alter_configs, incremental_alter_configs
from tests.server.conftest import StartBroker
from tests.server.handlers.harness import HandlerBroker

ALTER_CONFIGS = 33
INCREMENTAL_ALTER_CONFIGS = 44
TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)

Change = tuple[str, int, str | None]


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Restores the log levels after a test: loggers are global."""
    loggers = [logging.getLogger(), logging.getLogger("kbroker.server.requests.dispatch")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


def incremental(kind: int, name: str, *changes: Change) -> Any:
    return incremental_alter_configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            incremental_alter_configs.AlterableConfig(name=config, config_operation=operation, value=value)
            for config, operation, value in changes
        ],
    )


def whole(kind: int, name: str, **configs: str | None) -> Any:
    return alter_configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            alter_configs.AlterableConfig(name=config.replace("_", "."), value=value)
            for config, value in configs.items()
        ],
    )


async def change(
    broker: HandlerBroker, kind: int, name: str, *changes: Change, version: int = 1, **members: Any
) -> tuple[int, str | None]:
    resources = [incremental(kind, name, *changes)]
    response = await broker.ask(INCREMENTAL_ALTER_CONFIGS, version, resources=resources, **members)
    (answer,) = response.responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return answer.error_code, answer.error_message


async def replace(broker: HandlerBroker, *resources: Any, version: int = 2, **members: Any) -> list[int]:
    response = await broker.ask(ALTER_CONFIGS, version, resources=list(resources), **members)
    return [answer.error_code for answer in response.responses]


@pytest.mark.parametrize("version", [0, 1])
async def test_a_topic_config_is_in_effect_when_the_response_is_sent(broker: HandlerBroker, version: int) -> None:
    await broker.create_topic("orders")
    answer = await change(broker, TOPIC, "orders", ("retention.ms", SET, "1234"), version=version)
    assert answer == (0, None)
    assert broker.log("orders").config.retention_ms == 1234
    assert broker.image.topics["orders"].configs == {"retention.ms": "1234"}
    assert await change(broker, TOPIC, "orders", ("retention.ms", DELETE, None), version=version) == (0, None)
    assert broker.log("orders").config.retention_ms == 604_800_000
    assert broker.image.topics["orders"].configs == {}


async def test_append_and_subtract_start_from_the_default(broker: HandlerBroker) -> None:
    await broker.create_topic("orders")

    async def policy_after(operation: int, value: str) -> str:
        assert await change(broker, TOPIC, "orders", ("cleanup.policy", operation, value)) == (0, None)
        return broker.image.topics["orders"].configs["cleanup.policy"]

    assert await policy_after(APPEND, "compact") == "delete,compact"
    assert await policy_after(APPEND, "compact,delete") == "delete,compact"
    assert await policy_after(SUBTRACT, "delete") == "compact"
    assert await policy_after(SUBTRACT, "compact,other") == ""
    assert broker.log("orders").config.cleanup_policy == frozenset()
    assert await policy_after(SET, "delete") == "delete"


async def test_an_item_that_is_subtracted_once_is_removed_once(broker: HandlerBroker) -> None:
    name = "leader.replication.throttled.replicas"
    await broker.create_topic("orders", configs={name: "0:1,1:1,0:1,0:1"})
    assert await change(broker, TOPIC, "orders", (name, APPEND, "2:1,1:1,2:1")) == (0, None)
    assert broker.image.topics["orders"].configs[name] == "0:1,1:1,0:1,0:1,2:1"
    assert await change(broker, TOPIC, "orders", (name, SUBTRACT, "0:1,0:1,1:1")) == (0, None)
    assert broker.image.topics["orders"].configs[name] == "0:1,2:1"


async def test_a_list_cannot_grow_beyond_the_length_of_a_string(broker: HandlerBroker) -> None:
    """DescribeConfigs could not answer with it, nor with any other config of the topic."""
    name = "leader.replication.throttled.replicas"
    half, rest = (",".join(f"{number}:{broker_id}" for number in range(3_000)) for broker_id in (1, 2))
    await broker.create_topic("orders", configs={name: half})
    code, message = await change(broker, TOPIC, "orders", (name, APPEND, rest))
    assert code == ErrorCode.INVALID_CONFIG
    assert message == (
        "The configuration value cannot be added because it exceeds the maximum value size of 32767 bytes."
    )
    assert broker.image.topics["orders"].configs[name] == half


async def test_configs_that_are_not_named_keep_their_values(broker: HandlerBroker) -> None:
    await broker.create_topic("orders", configs={"retention.ms": "1", "segment.ms": "2"})
    await change(broker, TOPIC, "orders", ("retention.ms", SET, "3"), ("no.such.thing", DELETE, None))
    assert broker.image.topics["orders"].configs == {"retention.ms": "3", "segment.ms": "2"}


@pytest.mark.parametrize(
    ("changes", "code", "reason"),
    [
        (
            [("retention.ms", SET, "soon")],
            ErrorCode.INVALID_CONFIG,
            "Invalid value soon for configuration retention.ms: Not a number of type LONG",
        ),
        (
            [("retention.ms", SET, "-2")],
            ErrorCode.INVALID_CONFIG,
            "Invalid value -2 for configuration retention.ms: Value must be at least -1",
        ),
        ([("compression.type", SET, "brotli")], ErrorCode.INVALID_CONFIG, "must be one of"),
        ([("preallocate", SET, "yes")], ErrorCode.INVALID_CONFIG, "Expected value to be either true or false"),
        ([("cleanup.policy", APPEND, "shred")], ErrorCode.INVALID_CONFIG, "must be a list of compact, delete"),
        ([("remote.storage.enable", SET, "true")], ErrorCode.INVALID_CONFIG, "Tiered Storage"),
        ([("no.such.thing", SET, "1")], ErrorCode.INVALID_CONFIG, "Unknown topic config name: no.such.thing"),
        ([("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG, "not LIST"),
        ([("no.such.thing", SUBTRACT, "1")], ErrorCode.INVALID_CONFIG, "not LIST"),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST, "retention.ms"),
        (
            [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)],
            ErrorCode.INVALID_REQUEST,
            "duplicate config keys",
        ),
        ([("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST, "Unknown operations type 9"),
    ],
)
@pytest.mark.parametrize("is_try", [True, False])
async def test_an_invalid_change_is_refused_with_its_reason_and_changes_nothing(
    broker: HandlerBroker, changes: list[Change], code: ErrorCode, reason: str, is_try: bool
) -> None:
    await broker.create_topic("orders", configs={"segment.ms": "5"})
    good: Change = ("segment.ms", SET, "6")
    answered, message = await change(broker, TOPIC, "orders", good, *changes, validate_only=is_try)
    assert answered == code
    assert message is not None
    assert reason in message
    assert broker.image.topics["orders"].configs == {"segment.ms": "5"}


async def test_validate_only_changes_nothing(broker: HandlerBroker) -> None:
    await broker.create_topic("orders")
    assert await change(broker, TOPIC, "orders", ("retention.ms", SET, "1"), validate_only=True) == (0, None)
    assert await replace(broker, whole(TOPIC, "orders", retention_ms="1"), validate_only=True) == [0]
    assert await change(broker, BROKER, "1", ("log.retention.ms", SET, "1"), validate_only=True) == (0, None)
    assert await change(broker, LOGGER, "1", ("root", SET, "TRACE"), validate_only=True) == (0, None)
    assert broker.image.topics["orders"].configs == {}
    assert broker.config.log_retention_ms is None
    assert logging.getLogger().level != 5


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "no topic!", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", ErrorCode.INVALID_REQUEST),
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
    answered, message = await change(broker, kind, name)
    assert answered == code
    assert message


async def test_an_invalid_config_is_reported_before_a_missing_topic(broker: HandlerBroker) -> None:
    answered, _ = await change(broker, TOPIC, "nowhere", ("retention.ms", SET, "x"))
    assert answered == ErrorCode.INVALID_CONFIG


async def test_a_resource_named_twice_is_refused_and_the_others_are_changed(broker: HandlerBroker) -> None:
    for name in ("orders", "invoices"):
        await broker.create_topic(name)
    twice = incremental(TOPIC, "orders", ("retention.ms", SET, "1"))
    once = incremental(TOPIC, "invoices", ("retention.ms", SET, "1"))
    response = await broker.ask(INCREMENTAL_ALTER_CONFIGS, 1, resources=[twice, once, twice])
    assert [answer.error_code for answer in response.responses] == [ErrorCode.INVALID_REQUEST, 0, 42]
    assert broker.image.topics["orders"].configs == {}
    assert broker.image.topics["invoices"].configs == {"retention.ms": "1"}


@pytest.mark.parametrize("version", range(3))
async def test_alter_configs_replaces_all_configs(broker: HandlerBroker, version: int) -> None:
    await broker.create_topic("orders", configs={"retention.ms": "1", "segment.ms": "2"})
    assert await replace(broker, whole(TOPIC, "orders", flush_ms="3"), version=version) == [0]
    assert broker.image.topics["orders"].configs == {"flush.ms": "3"}
    assert await replace(broker, whole(TOPIC, "orders"), version=version) == [0]
    assert broker.image.topics["orders"].configs == {}


async def test_alter_configs_refuses_what_incremental_alter_configs_refuses(broker: HandlerBroker) -> None:
    await broker.create_topic("orders", configs={"retention.ms": "1"})
    assert await replace(
        broker,
        whole(TOPIC, "orders", retention_ms="x"),
        whole(TOPIC, "nowhere", retention_ms="1"),
        whole(LOGGER, "1", root="INFO"),
        whole(GROUP, "billing", consumer_session_timeout_ms=None),
    ) == [
        ErrorCode.INVALID_CONFIG,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert broker.image.topics["orders"].configs == {"retention.ms": "1"}


async def test_a_broker_config_applies_to_topics_without_their_own_value(start_broker: StartBroker) -> None:
    broker = await start_broker(log_retention_hours=1)
    await broker.create_topic("orders")
    await broker.create_topic("invoices", configs={"retention.ms": "9"})

    def retention() -> tuple[int, int]:
        return broker.log("orders").config.retention_ms, broker.log("invoices").config.retention_ms

    assert await change(broker, BROKER, "", ("log.retention.ms", SET, "700")) == (0, None)
    assert retention() == (700, 9)
    assert await change(broker, BROKER, "1", ("log.retention.ms", SET, "600")) == (0, None)
    assert retention() == (600, 9)
    await broker.create_topic("late")
    assert broker.log("late").config.retention_ms == 600
    assert await change(broker, BROKER, "1", ("log.retention.ms", DELETE, None)) == (0, None)
    assert retention() == (700, 9)
    assert await replace(broker, whole(BROKER, "")) == [0]
    assert retention() == (3_600_000, 9)


@pytest.mark.parametrize(
    ("name", "changes", "code", "reason"),
    [
        ("1", [("num.partitions", SET, "3")], ErrorCode.INVALID_REQUEST, "dynamically: num.partitions"),
        (
            "1",
            [("log.retention.ms", SET, "x")],
            ErrorCode.INVALID_REQUEST,
            "Invalid value x for configuration log.retention.ms",
        ),
        ("1", [("log.retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG, "not LIST"),
        ("1", [("ssl.keystore.type", SET, "PEM")], ErrorCode.INVALID_REQUEST, "using the listener prefix"),
        ("", [("listener.name.a.ssl.keystore.type", SET, "PEM")], ErrorCode.INVALID_REQUEST, "broker id"),
        ("1", [("listeners", SET, "PLAINTEXT://a:1")], ErrorCode.INVALID_REQUEST, "restart"),
    ],
)
async def test_configs_that_are_not_dynamic_are_refused(
    broker: HandlerBroker, name: str, changes: list[Change], code: ErrorCode, reason: str
) -> None:
    answered, message = await change(broker, BROKER, name, *changes)
    assert answered == code
    assert message is not None
    assert reason in message
    assert broker.image.entity_configs == {}


async def test_a_read_only_config_that_was_never_set_may_be_deleted(broker: HandlerBroker) -> None:
    assert await change(broker, BROKER, "1", ("num.partitions", DELETE, None)) == (0, None)


async def test_log_levels_change_until_the_broker_stops(broker: HandlerBroker) -> None:
    logger = logging.getLogger("kbroker.server.requests.dispatch")
    assert await change(broker, LOGGER, "1", (logger.name, SET, "TRACE")) == (0, None)
    assert logger.level == 5
    assert await change(broker, LOGGER, "1", (logger.name, DELETE, None)) == (0, None)
    assert logger.level == logging.NOTSET
    assert broker.image.entity_configs == {}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("kbroker.server.requests.dispatch", SET, "LOUD")], ErrorCode.INVALID_CONFIG),
        ([("no.such.logger", SET, "INFO")], ErrorCode.INVALID_CONFIG),
        ([("root", DELETE, None)], ErrorCode.INVALID_REQUEST),
        ([("root", APPEND, "INFO")], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_invalid_log_levels_are_refused(broker: HandlerBroker, changes: list[Change], code: ErrorCode) -> None:
    logger = logging.getLogger("kbroker.server.requests.dispatch")
    logger.setLevel(logging.INFO)
    others = [change for change in changes if change[0] != logger.name]
    answered, _ = await change(broker, LOGGER, "1", *([(logger.name, SET, "ERROR")] if others else []), *changes)
    assert (answered, logger.level) == (code, logging.INFO)


async def test_groups_have_configs_within_the_brokers_limits(broker: HandlerBroker) -> None:
    assert await change(broker, GROUP, "a/b", ("consumer.session.timeout.ms", SET, "50000")) == (0, None)
    assert broker.image.configs_of("groups/a%2Fb") == {"consumer.session.timeout.ms": "50000"}
    answered, message = await change(broker, GROUP, "a/b", ("consumer.session.timeout.ms", SET, "1"))
    assert (answered, message) == (
        ErrorCode.INVALID_CONFIG,
        "consumer.session.timeout.ms=1 must be at least group.consumer.min.session.timeout.ms=45000",
    )
    answered, _ = await change(broker, GROUP, "a/b", ("consumer.session.timeout.ms", DELETE, None))
    assert (answered, broker.image.entity_configs) == (0, {})


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("interval.ms", "1000", 0),
        ("interval.ms", "1", ErrorCode.INVALID_REQUEST),
        ("interval.ms", "x", ErrorCode.INVALID_CONFIG),
        ("match", "client_id=a.*,client_software_name=b", 0),
        ("match", "colour=red", ErrorCode.INVALID_CONFIG),
        ("match", "client_id", ErrorCode.INVALID_CONFIG),
        ("match", "client_id=[", ErrorCode.INVALID_CONFIG),
        ("other", "1", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_client_metrics_configs_are_validated_and_stored(
    broker: HandlerBroker, name: str, value: str, code: int
) -> None:
    answered, _ = await change(broker, CLIENT_METRICS, "slow-ones", (name, SET, value))
    assert answered == code
    assert broker.image.configs_of("client-metrics/slow-ones") == ({} if code else {name: value})


async def test_alter_configs_needs_a_permission(broker: HandlerBroker) -> None:
    await broker.create_topic("orders")
    broker.allow((AclOperation.DESCRIBE_CONFIGS, "orders"))
    assert (await change(broker, TOPIC, "orders", ("retention.ms", SET, "1")))[0] == 29
    assert (await change(broker, BROKER, "1", ("log.retention.ms", SET, "1")))[0] == 31
    assert (await change(broker, LOGGER, "1", ("root", SET, "TRACE")))[0] == 31
    assert (await change(broker, GROUP, "billing", ("share.auto.offset.reset", SET, "latest")))[0] == 30
    broker.allow((AclOperation.ALTER_CONFIGS, "orders"))
    assert await change(broker, TOPIC, "orders", ("retention.ms", SET, "1")) == (0, None)


async def test_a_config_without_effect_is_stored_with_one_warning(
    broker: HandlerBroker, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.create_topic("orders", configs={"local.retention.ms": "1", "retention.ms": "1"})
    assert [record.getMessage() for record in caplog.records] == [
        "Config local.retention.ms of topic orders is stored, but has no effect in kbroker"
    ]
    caplog.clear()
    assert await change(broker, BROKER, "1", ("num.io.threads", SET, "9"), ("log.retention.ms", SET, "5")) == (0, None)
    assert await change(broker, BROKER, "1", ("max.connections", SET, "9")) == (0, None)
    assert [record.getMessage() for record in caplog.records] == [
        "Config num.io.threads of brokers/1 is stored, but has no effect in kbroker",
    ]
