"""Configs of groups: their own, else the broker's, within the broker's limits."""

from __future__ import annotations

import pytest

from kbroker.config.broker import BROKER_CONFIGS, BrokerConfig
from kbroker.config.group import (
    _LIMITS,
    GROUP_CONFIGS,
    describe_group_configs,
    group_config,
    validate_group_configs,
)
from kbroker.config.key import ConfigKey, ConfigSource
from tests.config.test_config import USED_ATTRIBUTES, differences, documented


def broker(**properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties({name.replace("_", "."): text for name, text in properties.items()})


def test_a_group_falls_back_to_the_broker() -> None:
    config = group_config(broker(group_consumer_session_timeout_ms="50000"), {"share.auto.offset.reset": "earliest"})
    assert (config.consumer_session_timeout_ms, config.share_auto_offset_reset) == (50000, "earliest")
    assert config.consumer_heartbeat_interval_ms == 5000


def test_overrides_of_another_release_are_passed_over() -> None:
    config = group_config(broker(), {"from.the.future": "1", "consumer.session.timeout.ms": "x"})
    assert config.consumer_session_timeout_ms == 45000


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("consumer.session.timeout.ms", "50000", None),
        ("consumer.session.timeout.ms", "x", "Not a number of type INT"),
        ("consumer.session.timeout.ms", "44999", "at least group.consumer.min.session.timeout.ms=45000"),
        ("consumer.session.timeout.ms", "60001", "at most group.consumer.max.session.timeout.ms=60000"),
        ("consumer.heartbeat.interval.ms", "4999", "at least group.consumer.min.heartbeat.interval.ms=5000"),
        ("share.record.lock.duration.ms", "60001", "at most group.share.max.record.lock.duration.ms=60000"),
        ("streams.num.standby.replicas", "3", "at most group.streams.max.standby.replicas=2"),
        ("share.auto.offset.reset", "by_duration:P1DT2H30M", None),
        ("share.auto.offset.reset", "by_duration:PT0.5S", None),
        ("share.auto.offset.reset", "by_duration:P", "by_duration"),
        ("share.auto.offset.reset", "sometimes", "earliest, latest"),
        ("share.isolation.level", "none", "must be one of"),
        ("no.such.config", "1", "Unknown group config name: no.such.config"),
    ],
)
def test_configs_are_checked_with_a_reason(name: str, text: str, problem: str | None) -> None:
    reason = validate_group_configs(broker(), {name: text})
    assert (reason is None) if problem is None else (reason is not None and problem in reason)


def test_a_heartbeat_must_fit_into_the_session() -> None:
    config = broker(group_consumer_min_session_timeout_ms="10", group_consumer_min_heartbeat_interval_ms="10")
    assert validate_group_configs(config, {"consumer.session.timeout.ms": "5001"}) is None
    reason = validate_group_configs(config, {"consumer.session.timeout.ms": "5000"})
    assert reason == "consumer.session.timeout.ms must be larger than consumer.heartbeat.interval.ms"


def test_every_config_is_described_with_its_source() -> None:
    overrides = {"consumer.session.timeout.ms": "50000"}
    entries = {entry.name: entry for entry in describe_group_configs(broker(), overrides)}
    assert set(entries) == set(GROUP_CONFIGS)
    session, heartbeat = entries["consumer.session.timeout.ms"], entries["consumer.heartbeat.interval.ms"]
    assert (session.value, session.source) == ("50000", ConfigSource.DYNAMIC_GROUP_CONFIG)
    assert (heartbeat.value, heartbeat.source) == ("5000", ConfigSource.DEFAULT_CONFIG)
    assert session.synonyms[0].value == "50000"


@pytest.mark.parametrize("key", GROUP_CONFIGS.values(), ids=lambda key: key.name)
def test_every_row_holds_together(key: ConfigKey[object]) -> None:
    assert key.default_text is not None
    assert key.parse(key.default_text) == key.default
    assert key.documentation.endswith(".")
    assert key.has_effect == (key.attribute in USED_ATTRIBUTES)
    for fallback in key.fallbacks:
        assert BROKER_CONFIGS[fallback.name].default == key.default
    assert all(limit is None or limit in BROKER_CONFIGS for limit in _LIMITS.get(key.name, ()))


def test_group_configs_are_those_of_kafka_4_1(java: str, judge_classpath: str) -> None:
    kafka = documented(java, judge_classpath, "org.apache.kafka.coordinator.group.GroupConfig")
    assert set(kafka) == set(GROUP_CONFIGS)
    assert list(differences(GROUP_CONFIGS, kafka)) == []
