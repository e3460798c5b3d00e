"""Configs of client metrics subscriptions (KIP-714): validated and described, but not sent to clients yet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kbroker.config.key import ConfigEntry, ConfigSource, ConfigSynonym, ConfigType
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["check_subscription", "describe_subscription"]

_MIN_INTERVAL_MS: Final = 100
_MAX_INTERVAL_MS: Final = 3_600_000

_CONFIGS: Final = {
    "interval.ms": ("300000", ConfigType.INT, "Metrics push interval in milliseconds"),
    "match": ("", ConfigType.LIST, "Client match criteria"),
    "metrics": ("", ConfigType.LIST, "Telemetry metric name prefix list"),
}
_SELECTORS: Final = (
    "client_id",
    "client_instance_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


def describe_subscription(configs: Mapping[str, str]) -> list[ConfigEntry]:
    entries = []
    for name, (default, kind, documentation) in _CONFIGS.items():
        if name in configs:
            source = ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG
            synonyms = (ConfigSynonym(name, configs[name], source),)
            entries.append(ConfigEntry(name, configs[name], source, kind, synonyms, documentation))
        else:
            entries.append(ConfigEntry(name, default, ConfigSource.DEFAULT_CONFIG, kind, (), documentation))
    return entries


def check_subscription(configs: Mapping[str, str]) -> None:
    for name in configs:
        if name not in _CONFIGS:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
    interval = configs.get("interval.ms")
    if interval is not None:
        if not interval.strip().isascii() or not interval.strip().isdigit():
            raise Refusal(
                ErrorCode.INVALID_CONFIG,
                f"Invalid value {interval} for configuration interval.ms: Not a number of type INT",
            )
        if not _MIN_INTERVAL_MS <= int(interval) <= _MAX_INTERVAL_MS:
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                f"Invalid value {interval} for interval.ms, interval must be between 100 and 3600000 (1 hour)",
            )
    for pattern in filter(None, configs.get("match", "").split(",")):
        name, equals, expression = (part.strip() for part in pattern.partition("="))
        if not equals or name not in _SELECTORS or not _compiles(expression):
            raise Refusal(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {pattern}")


def _compiles(expression: str) -> bool:
    try:
        re.compile(expression)
    except re.error:
        return False
    return True
