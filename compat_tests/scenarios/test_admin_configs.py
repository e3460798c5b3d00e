"""Configs described, changed and refused through the admin clients of two libraries."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import admin as confluent_admin
from kafka import admin as kafka_admin

from compat_tests.scenarios.conftest import code_of

confluent: Any = confluent_admin

WAIT_SECONDS = 10.0
TOPIC_CONFIG = 1
DEFAULT_CONFIG = 5
DYNAMIC_BROKER_CONFIG = 2
INVALID_CONFIG, INVALID_REQUEST, UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC = 40, 42, 3, 17


@pytest.fixture
def created(admin: Any, topic: str) -> str:
    admin.create_topics([confluent.NewTopic(topic, 1, 1, config={"retention.ms": "60000"})])[topic].result()
    return topic


def describe(admin: Any, kind: str, name: str) -> dict[str, Any]:
    (future,) = admin.describe_configs([confluent.ConfigResource(kind, name)]).values()
    entries: dict[str, Any] = future.result()
    return entries


def change(admin: Any, kind: str, name: str, *changes: tuple[str, Any, str | None]) -> int:
    """Returns the error code of one change, 0 if it succeeded."""
    entries = [confluent.ConfigEntry(name, value, incremental_operation=how) for name, how, value in changes]
    (future,) = admin.incremental_alter_configs(
        [confluent.ConfigResource(kind, name, incremental_configs=entries)]
    ).values()
    return code_of(future)


def test_all_configs_of_a_topic_have_source_and_synonyms(admin: Any, created: str) -> None:
    entries = describe(admin, "topic", created)
    assert len(entries) == 33
    assert (entries["retention.ms"].value, entries["retention.ms"].source) == ("60000", TOPIC_CONFIG)
    assert (entries["segment.bytes"].value, entries["segment.bytes"].source) == ("1073741824", DEFAULT_CONFIG)
    assert list(entries["segment.bytes"].synonyms) == ["log.segment.bytes"]
    assert list(entries["retention.ms"].synonyms) == ["retention.ms"]
    assert not any(entry.is_read_only or entry.is_sensitive for entry in entries.values())


def test_all_configs_of_a_broker_are_described_without_secrets(admin: Any) -> None:
    entries = describe(admin, "broker", "1")
    assert len(entries) >= 316
    assert (entries["num.partitions"].is_read_only, entries["log.retention.ms"].is_read_only) == (True, False)
    assert (entries["broker.id"].value, entries["node.id"].value) == ("1", "1")
    assert entries["ssl.key.password"].is_sensitive
    assert [entry.name for entry in entries.values() if entry.is_sensitive and entry.value is not None] == []


def test_configs_are_set_appended_subtracted_and_deleted(admin: Any, created: str) -> None:
    def value(name: str) -> str:
        text: str = describe(admin, "topic", created)[name].value
        return text

    set_it, delete = confluent.AlterConfigOpType.SET, confluent.AlterConfigOpType.DELETE
    append, subtract = confluent.AlterConfigOpType.APPEND, confluent.AlterConfigOpType.SUBTRACT
    assert change(admin, "topic", created, ("retention.ms", set_it, "5000"), ("cleanup.policy", append, "compact")) == 0
    wait_for(lambda: (value("retention.ms"), value("cleanup.policy")), ("5000", "delete,compact"))
    assert change(admin, "topic", created, ("retention.ms", delete, ""), ("cleanup.policy", subtract, "delete")) == 0
    wait_for(lambda: (value("retention.ms"), value("cleanup.policy")), ("604800000", "compact"))


@pytest.mark.parametrize(
    ("name", "operation", "value", "code"),
    [
        ("retention.ms", confluent.AlterConfigOpType.SET, "soon", INVALID_CONFIG),
        ("retention.ms", confluent.AlterConfigOpType.SET, "-2", INVALID_CONFIG),
        ("compression.type", confluent.AlterConfigOpType.SET, "brotli", INVALID_CONFIG),
        ("no.such.config", confluent.AlterConfigOpType.SET, "1", INVALID_CONFIG),
        ("retention.ms", confluent.AlterConfigOpType.APPEND, "1", INVALID_CONFIG),
        ("remote.storage.enable", confluent.AlterConfigOpType.SET, "true", INVALID_CONFIG),
    ],
)
def test_an_invalid_change_is_refused(
    admin: Any, created: str, name: str, operation: Any, value: str, code: int
) -> None:
    assert change(admin, "topic", created, (name, operation, value)) == code
    assert describe(admin, "topic", created)["retention.ms"].value == "60000"


def test_an_unknown_resource_has_no_configs(admin: Any, topic: str) -> None:
    assert (
        change(admin, "topic", topic, ("retention.ms", confluent.AlterConfigOpType.SET, "1"))
        == UNKNOWN_TOPIC_OR_PARTITION
    )
    for kind, name, code in (
        ("topic", topic, UNKNOWN_TOPIC_OR_PARTITION),
        ("topic", "no topic!", INVALID_TOPIC),
    ):
        (future,) = admin.describe_configs([confluent.ConfigResource(kind, name)]).values()
        assert code_of(future) == code


def test_a_broker_accepts_dynamic_configs_and_refuses_the_others(admin: Any, created: str) -> None:
    set_it, delete = confluent.AlterConfigOpType.SET, confluent.AlterConfigOpType.DELETE
    assert change(admin, "broker", "1", ("num.partitions", set_it, "3")) == INVALID_REQUEST
    assert change(admin, "broker", "1", ("log.segment.bytes", set_it, "many")) == INVALID_REQUEST
    assert change(admin, "broker", "1", ("log.segment.bytes", set_it, "33554432")) == 0
    try:
        wait_for(lambda: describe(admin, "broker", "1")["log.segment.bytes"].value, "33554432")
        wait_for(lambda: describe(admin, "topic", created)["segment.bytes"].value, "33554432")
        assert describe(admin, "topic", created)["segment.bytes"].source == DYNAMIC_BROKER_CONFIG
    finally:
        assert change(admin, "broker", "1", ("log.segment.bytes", delete, "")) == 0
    wait_for(lambda: describe(admin, "topic", created)["segment.bytes"].value, "1073741824")


def test_alter_configs_replaces_all_configs(admin: Any, created: str) -> None:
    with pytest.warns(DeprecationWarning, match="incremental_alter_configs"):
        (future,) = admin.alter_configs(
            [confluent.ConfigResource("topic", created, set_config={"segment.ms": "7000"})]
        ).values()
    assert code_of(future) == 0
    wait_for(lambda: describe(admin, "topic", created)["segment.ms"].value, "7000")
    assert describe(admin, "topic", created)["retention.ms"].value == "604800000"


def test_kafka_python_changes_and_resets_configs(python_admin: Any, created: str) -> None:
    def modified() -> dict[str, str]:
        described = python_admin.describe_configs([kafka_admin.ConfigResource("TOPIC", created)])
        return {name: config["value"] for name, config in described["topic"][created].items()}

    assert modified() == {"retention.ms": "60000"}
    wished = kafka_admin.ConfigResource("TOPIC", created, {"segment.ms": "7000"})
    assert python_admin.alter_configs([wished]) == {"topic": {created: "OK"}}
    wait_for(modified, {"retention.ms": "60000", "segment.ms": "7000"})
    assert python_admin.reset_configs([wished]) == {"topic": {created: "OK"}}
    wait_for(modified, {"retention.ms": "60000"})
    refused = kafka_admin.ConfigResource("TOPIC", created, {"segment.ms": "never"})
    assert "Error 40" in python_admin.alter_configs([refused])["topic"][created]


def test_resources_with_configs_are_listed(python_admin: Any, created: str) -> None:
    listed = python_admin.list_config_resources()
    assert created in listed["topic"]
    assert (listed["broker"], listed["broker_logger"]) == (["1"], ["1"])


def wait_for(read: Any, expected: Any) -> None:
    """Waits for a condition: Apache Kafka responds before a change is visible everywhere."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := read()) != expected:
        assert time.monotonic() < deadline, f"{found} is not {expected}"
        time.sleep(0.05)
