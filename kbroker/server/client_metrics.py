"""Which metrics clients shall push (KIP-714): a subscription's configs, kept and checked. No client is asked yet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kbroker.config_key import ConfigEntry, ConfigSource, ConfigSynonym, ConfigType
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["check_subscription", "describe_subscription"]

_MIN_INTERVAL_MS: Final = 100
_MAX_INTERVAL_MS: Final = 3_600_000

_CONFIGS: Final = {
    "interval.ms": ("300000", ConfigType.INT, "How often the client pushes."),
    "match": ("", ConfigType.LIST, "Which clients are meant, as NAME=PATTERN; empty: all."),
    "metrics": ("", ConfigType.LIST, "What the names of the wanted metrics begin with; empty: none."),
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
            raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown client metrics config: {name}")
    interval = configs.get("interval.ms")
    if interval is not None:
        if not interval.strip().isascii() or not interval.strip().isdigit():
            raise Refusal(ErrorCode.INVALID_CONFIG, f"interval.ms={interval} is not a whole number")
        if not _MIN_INTERVAL_MS <= int(interval) <= _MAX_INTERVAL_MS:
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                f"interval.ms={interval} must be between {_MIN_INTERVAL_MS} and {_MAX_INTERVAL_MS} (an hour)",
            )
    for pattern in filter(None, configs.get("match", "").split(",")):
        name, equals, expression = (part.strip() for part in pattern.partition("="))
        if not equals or name not in _SELECTORS or not _compiles(expression):
            raise Refusal(ErrorCode.INVALID_CONFIG, f"match has {pattern}, which is not NAME=PATTERN of a client")


def _compiles(expression: str) -> bool:
    try:
        re.compile(expression)
    except re.error:
        return False
    return True
