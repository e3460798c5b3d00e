"""Logs one line for each change of topics, configs and quotas.

Follows the image after it was loaded. Requests that change nothing are never logged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from kbroker.config.broker import BROKER_CONFIGS
from kbroker.controller.changes import (
    Change,
    EntityConfigsChanged,
    PartitionsChanged,
    TopicAdded,
    TopicConfigsChanged,
    TopicRemoved,
)
from kbroker.controller.image import Image

__all__ = ["EventLog"]

logger = logging.getLogger(__name__)


class EventLog:
    def __init__(self, image: Image) -> None:
        self._counts = {name: len(topic.partitions) for name, topic in image.topics.items()}
        self._configs = {name: topic.configs for name, topic in image.topics.items()}

    def on_image(self, image: Image, changes: Sequence[Change]) -> None:
        for change in changes:
            match change:
                case TopicAdded(topic):
                    count = self._counts[topic.name] = len(topic.partitions)
                    self._configs[topic.name] = topic.configs
                    fields = {"topic": topic.name, "partitions": count, "configs": dict(topic.configs)}
                    logger.info("Created topic %s%s", topic.name, _with(count, topic.configs), extra=fields)
                case TopicRemoved(topic):
                    self._counts.pop(topic.name, None)
                    self._configs.pop(topic.name, None)
                    logger.info("Deleted topic %s", topic.name, extra={"topic": topic.name})
                case PartitionsChanged(name, _):
                    self._log_growth(name, len(image.topics[name].partitions))
                case TopicConfigsChanged(name, configs) if configs != self._configs.get(name):
                    # Equal configs are sent when only the broker's defaults have changed.
                    self._configs[name] = configs
                    fields = {"topic": name, "configs": dict(configs)}
                    logger.info("Configs of topic %s changed to: %s", name, _text(configs), extra=fields)
                case EntityConfigsChanged(entity, configs):
                    shown = {name: _shown(entity, name, text) for name, text in configs.items()}
                    fields = {"entity": entity, "configs": shown}
                    logger.info("Configs of %s changed to: %s", entity, _text(shown), extra=fields)

    def _log_growth(self, name: str, count: int) -> None:
        """Logs new partitions only: other changes of partitions are elections and ISR changes."""
        before = self._counts.get(name, 0)
        self._counts[name] = count
        if count > before:
            fields = {"topic": name, "partitions": count}
            logger.info("Increased partitions of topic %s from %d to %d", name, before, count, extra=fields)


def _with(count: int, configs: Mapping[str, str]) -> str:
    partitions = f" with {count} partition{'s' if count != 1 else ''}"
    return f"{partitions}, {_text(configs)}" if configs else partitions


def _text(configs: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={text}" for name, text in configs.items()) or "none"


def _shown(entity: str, name: str, text: str) -> str:
    """Redacts sensitive configs, credentials of users, and unknown broker configs: they may hold secrets."""
    if entity.startswith("brokers/"):
        key = BROKER_CONFIGS.get(name)
        is_secret = key is None or key.is_sensitive
    else:
        is_secret = entity.startswith("users/") and not name.endswith(("_rate", "_percentage"))
    return "[hidden]" if is_secret else text
