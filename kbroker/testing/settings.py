"""Broker settings of tests as Python values: `num_partitions=3`, `topics=["orders:3"]`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Final

from kbroker.config.broker import BrokerConfig
from kbroker.controller.rules.topic_rules import DEFAULT
from kbroker.errors import UserError

__all__ = ["Setting", "Topics", "config_for_tests", "properties_of", "topics_of"]

Setting = str | int | float | bool | Iterable[str]
Topics = Iterable[str] | Mapping[str, int]

# A free loopback port, internal topics with one partition and no reserved disk space, for a fast start.
_DEFAULTS: Final = {
    "kbroker.log.dir.reserve.bytes": "0",
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


def config_for_tests(properties: Mapping[str, str], *, stacklevel: int) -> BrokerConfig:
    """Builds the config of a test broker. Raises UserError for an invalid value.

    Warns, at the line of the caller, about settings without effect.
    """
    if "log.dirs" in properties or "log.dir" in properties:
        raise UserError("Use data_dir=… to set the data directory: log.dirs would not be removed after the test")
    config = BrokerConfig.from_properties({**_DEFAULTS, **properties})
    for text in config.warnings:
        warnings.warn(text, stacklevel=stacklevel + 1)
    return config


def properties_of(settings: Mapping[str, Setting]) -> dict[str, str]:
    """Converts settings to Kafka's names and texts. Names may have dots or underscores."""
    return {name.replace("_", "."): _text(value) for name, value in settings.items()}


def topics_of(topics: Topics) -> list[tuple[str, int]]:
    """Parses `["orders:3", "events"]` or `{"orders": 3}`. Without a count, num.partitions is used."""
    if isinstance(topics, str):
        topics = [topics]
    if isinstance(topics, Mapping):
        return [(name, _count(name, count)) for name, count in topics.items()]
    return [_topic(text) for text in topics]


def _topic(text: str) -> tuple[str, int]:
    name, colon, count = text.partition(":")
    if not colon:
        return name, DEFAULT
    if not (count.isascii() and count.isdigit()):
        raise UserError(f"Invalid topic '{text}': expected name or name:partitions")
    return name, _count(name, int(count))


def _count(name: str, count: int) -> int:
    if count < 1:
        raise UserError(f"Topic {name} must have at least one partition, not {count}")
    return count


def _text(value: Setting) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    return ",".join(value)
