"""Group configs (KIP-848 and later): the table, effective values, validation and description."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from kbroker.config.broker import BrokerConfig
from kbroker.config.key import (
    ConfigEntry,
    ConfigKey,
    ConfigSource,
    ConfigSynonym,
    ConfigTable,
    InvalidValue,
    at_least,
    between,
    int32,
    keys_of,
    one_of,
    string,
)

__all__ = [
    "GROUP_CONFIGS",
    "GroupConfig",
    "consumer_timeouts",
    "describe_group_configs",
    "group_config",
    "validate_group_configs",
]

_DURATION = re.compile(r"by_duration:P(?=.)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d{1,9})?S)?)?", re.IGNORECASE)


def _offset_reset(value: str) -> str | None:
    if value.lower() in ("earliest", "latest") or _DURATION.fullmatch(value):
        return None
    return "must be earliest, latest, or by_duration:DURATION (example: by_duration:P1DT2H30M)"


class GroupConfig(ConfigTable):
    """Effective configs of a group: its overrides, else the broker's configs, else the defaults. Never changes."""

    consumer_heartbeat_interval_ms = int32(
        5000,
        at_least(1),
        "Heartbeat interval given to the members of the consumer group.",
        "group.consumer.heartbeat.interval.ms",
    )
    consumer_session_timeout_ms = int32(
        45_000,
        at_least(1),
        "Timeout to detect failed members of the consumer group.",
        "group.consumer.session.timeout.ms",
    )
    share_auto_offset_reset = string(
        "latest", _offset_reset, "Start offset of a share group in a partition.", has_effect=False
    )
    share_heartbeat_interval_ms = int32(
        5000,
        at_least(1),
        "Heartbeat interval given to the members of the share group.",
        "group.share.heartbeat.interval.ms",
        has_effect=False,
    )
    share_isolation_level = string(
        "read_uncommitted",
        one_of("read_committed", "read_uncommitted"),
        "Whether the share group reads records of transactions that are not committed.",
        has_effect=False,
    )
    share_record_lock_duration_ms = int32(
        30_000,
        between(1000, 3_600_000),
        "Time that a fetched record is locked for its member.",
        "group.share.record.lock.duration.ms",
        has_effect=False,
    )
    share_session_timeout_ms = int32(
        45_000,
        at_least(1),
        "Timeout to detect failed members of the share group.",
        "group.share.session.timeout.ms",
        has_effect=False,
    )
    streams_heartbeat_interval_ms = int32(
        5000,
        at_least(1),
        "Heartbeat interval given to the members of the streams group.",
        "group.streams.heartbeat.interval.ms",
        has_effect=False,
    )
    streams_num_standby_replicas = int32(
        0,
        at_least(0),
        "Number of standby replicas for each task of the streams group.",
        "group.streams.num.standby.replicas",
        has_effect=False,
    )
    streams_session_timeout_ms = int32(
        45_000,
        at_least(1),
        "Timeout to detect failed members of the streams group.",
        "group.streams.session.timeout.ms",
        has_effect=False,
    )


GROUP_CONFIGS: Final[Mapping[str, ConfigKey[Any]]] = {key.name: key for key in keys_of(GroupConfig)}

# Broker configs that limit a group config: minimum (or None) and maximum.
_LIMITS: Final = {
    "consumer.heartbeat.interval.ms": (
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    "consumer.session.timeout.ms": ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    "share.heartbeat.interval.ms": ("group.share.min.heartbeat.interval.ms", "group.share.max.heartbeat.interval.ms"),
    "share.record.lock.duration.ms": (
        "group.share.min.record.lock.duration.ms",
        "group.share.max.record.lock.duration.ms",
    ),
    "share.session.timeout.ms": ("group.share.min.session.timeout.ms", "group.share.max.session.timeout.ms"),
    "streams.heartbeat.interval.ms": (
        "group.streams.min.heartbeat.interval.ms",
        "group.streams.max.heartbeat.interval.ms",
    ),
    "streams.num.standby.replicas": (None, "group.streams.max.standby.replicas"),
    "streams.session.timeout.ms": ("group.streams.min.session.timeout.ms", "group.streams.max.session.timeout.ms"),
}
_SESSIONS: Final = ("consumer", "share", "streams")


def group_config(broker: BrokerConfig, overrides: Mapping[str, str]) -> GroupConfig:
    """Returns the effective configs of a group.

    Skips unknown or invalid overrides: a newer release may have stored them.
    """
    values: dict[str, object] = {}
    for name, key in GROUP_CONFIGS.items():
        values[name] = broker.value_of(key.fallbacks[0].name) if key.fallbacks else key.default
        if name in overrides:
            with suppress(ValueError):
                values[name] = key.parse(overrides[name])
    return GroupConfig(values, overrides)


def consumer_timeouts(broker: BrokerConfig, overrides: Mapping[str, str]) -> tuple[int, int]:
    """Returns session timeout and heartbeat interval of a consumer group, in ms.

    Called for every heartbeat, so it avoids a GroupConfig if the group has no overrides.
    """
    session_ms, interval_ms = broker.group_consumer_session_timeout_ms, broker.group_consumer_heartbeat_interval_ms
    if overrides:
        config = group_config(broker, overrides)
        session_ms, interval_ms = config.consumer_session_timeout_ms, config.consumer_heartbeat_interval_ms
    return session_ms, interval_ms


def validate_group_configs(broker: BrokerConfig, overrides: Mapping[str, str]) -> str | None:
    """Returns the error message for invalid overrides (INVALID_CONFIG), or None."""
    for name, text in overrides.items():
        key = GROUP_CONFIGS.get(name)
        if key is None:
            return f"Unknown group config name: {name}"
        try:
            value = key.parse(text)
        except InvalidValue as problem:
            return problem.for_client()
        least, most = _LIMITS.get(name, (None, None))
        if least is not None and value < broker.value_of(least):
            return f"{name}={text} must be at least {least}={broker.value_of(least)}"
        if most is not None and value > broker.value_of(most):
            return f"{name}={text} must be at most {most}={broker.value_of(most)}"
    effective = group_config(broker, overrides)
    for kind in _SESSIONS:
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if effective.value_of(session) <= effective.value_of(heartbeat):  # type: ignore[operator]
            return f"{session} must be larger than {heartbeat}"
    return None


def describe_group_configs(broker: BrokerConfig, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    effective = group_config(broker, overrides)
    entries = []
    for name, key in GROUP_CONFIGS.items():
        value = key.format(effective.value_of(name))
        source = ConfigSource.DYNAMIC_GROUP_CONFIG if name in overrides else ConfigSource.DEFAULT_CONFIG
        synonyms = (ConfigSynonym(name, value, source),)
        entries.append(ConfigEntry(name, value, source, key.type, synonyms, key.documentation))
    return entries
