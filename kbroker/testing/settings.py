"""What a test says of its broker, as Python writes it: `num_partitions=3`, `topics=["orders:3"]`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Final

from kbroker.config import BrokerConfig
from kbroker.controller.topic_rules import DEFAULT
from kbroker.errors import UserError

__all__ = ["Setting", "Topics", "config_for_tests", "properties_of", "topics_of"]

Setting = str | int | float | bool | Iterable[str]
Topics = Iterable[str] | Mapping[str, int]

# A free port that only this machine reaches; internal topics no larger than one test needs.
_DEFAULTS: Final = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


def config_for_tests(properties: Mapping[str, str], *, stacklevel: int) -> BrokerConfig:
    """UserError for a value that is wrong; a warning, at the caller's line, for a setting that does nothing."""
    if "log.dirs" in properties or "log.dir" in properties:
        raise UserError("name the directory by data_dir=…: log.dirs would not be removed afterwards")
    config = BrokerConfig.from_properties({**_DEFAULTS, **properties})
    for text in config.warnings:
        warnings.warn(text, stacklevel=stacklevel + 1)
    return config


def properties_of(settings: Mapping[str, Setting]) -> dict[str, str]:
    """Kafka's names and texts. A name may have its dots, or underscores in their place."""
    return {name.replace("_", "."): _text(value) for name, value in settings.items()}


def topics_of(topics: Topics) -> list[tuple[str, int]]:
    """`["orders:3", "events"]` or `{"orders": 3}`; without a count, num.partitions decides."""
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
        raise UserError(f"'{text}' is not a topic: write name or name:partitions")
    return name, _count(name, int(count))


def _count(name: str, count: int) -> int:
    if count < 1:
        raise UserError(f"topic {name} needs at least one partition, not {count}")
    return count


def _text(value: Setting) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    return ",".join(value)
