"""Writes configs and quotas to the tree, and announces each change to the other brokers.

In a cluster any broker may write them: if two brokers write the same node, the second one reads it and tries again.
Every broker follows the announcements (see `ConfigNotifications`); the writer applies its change at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from kbroker.config.broker import BROKER_CONFIGS
from kbroker.config.group import GROUP_CONFIGS
from kbroker.config.key import ConfigKey
from kbroker.config.listener import split_name
from kbroker.config.topic import TOPIC_CONFIGS, validate_topic_configs
from kbroker.controller.changes import Change, EntityConfigsChanged, TopicConfigsChanged
from kbroker.controller.metadata_store import MetadataStore
from kbroker.controller.trees import znodes
from kbroker.controller.trees.tree import (
    ANY_VERSION,
    BadVersion,
    ConnectionLost,
    Create,
    Delete,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionLost,
    SetData,
    TreeOperation,
    parent_of,
)
from kbroker.controller.trees.writes import announcement
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["ConfigWriter", "ConfigsUpdate", "warn_of_inactive"]

logger = logging.getLogger(__name__)

ConfigsUpdate = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Returns new configs for the given current ones. Raises Refusal if the change is not allowed."""

# Known configs by kind of entity. Quotas are missing: they are all in effect. Client metrics are never collected.
_TABLES: Final[Mapping[str, Mapping[str, ConfigKey[Any]]]] = {
    "brokers": BROKER_CONFIGS,
    "groups": GROUP_CONFIGS,
    "client-metrics": {},
}


class ConfigWriter:
    def __init__(self, store: MetadataStore, *, is_shared: bool) -> None:
        """`is_shared`: other brokers write configs too."""
        self._store = store
        self._is_shared = is_shared

    async def update_topic(self, name: str, update: ConfigsUpdate, *, validate_only: bool) -> None:
        path = znodes.topic_config_path(name)
        while True:
            topic = self._store.image.topic(name)
            known = topic.configs if topic is not None else {}
            before, version = await self._read(path, known)
            configs = dict(update(before))
            problem = validate_topic_configs(configs)
            if problem is not None:
                raise Refusal(ErrorCode.INVALID_CONFIG, problem)
            if topic is None:
                raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
            if validate_only or configs == before:
                return
            data = znodes.encode_configs(configs)
            # Apache Kafka creates no config node for a topic without configs.
            write: TreeOperation = Create(path, data) if version is None else SetData(path, data, version)
            if await self._write([write, announcement(f"topics/{name}")]):
                break
        if name in self._store.image.topics:  # else it was deleted during the write
            self._store.commit([TopicConfigsChanged(name, configs)])
        warn_of_inactive(f"topic {name}", _changed(before, configs), TOPIC_CONFIGS)

    async def update_entity(self, entity: str, update: ConfigsUpdate, *, validate_only: bool) -> None:
        path = znodes.entity_config_path(entity)
        while True:
            before, version = await self._read(path, self._store.image.configs_of(entity))
            configs = dict(update(before))
            if validate_only or configs == before:
                return
            if await self._write([*await self._entity_nodes(entity, configs, version), announcement(entity)]):
                break
        self._store.commit([EntityConfigsChanged(entity, configs)])
        table = _TABLES.get(entity.partition("/")[0])
        if table is not None:
            warn_of_inactive(entity, _changed(before, configs), table)

    async def _read(self, path: str, known: Mapping[str, str]) -> tuple[Mapping[str, str], int | None]:
        """Returns the current configs, and the version that the write must expect: None to create the node.

        The write must not look again whether the node exists: another broker may create it in between, and its configs
        would be overwritten. On a single node the known configs are current, and the version is not checked.
        """
        (node,) = await self._store.tree.get_many([path])
        if not self._is_shared:
            return known, None if node is None else ANY_VERSION
        if node is None:
            return {}, None
        try:
            return znodes.decode_configs(node.data), node.stat.version
        except znodes.BadNode as failure:
            logger.error("%s is not valid and is replaced by the known configs: %s", path, failure)
            return known, node.stat.version

    async def _write(self, operations: list[TreeOperation]) -> bool:
        """Whether the write succeeded. False if another broker was quicker: the caller must read again."""
        if not self._is_shared:
            await self._store.write(operations)
            return True
        try:
            await self._store.tree.multi(operations)
        except (BadVersion, NodeExists, NoNode, NotEmpty):
            return False
        except (ConnectionLost, SessionLost) as failure:
            raise Refusal(ErrorCode.REQUEST_TIMED_OUT, "The metadata store did not answer.") from failure
        return True

    async def _entity_nodes(self, entity: str, configs: Mapping[str, str], version: int | None) -> list[TreeOperation]:
        """Returns the operations that store the configs. A node without configs is deleted, unless it has children."""
        tree = self._store.tree
        path = znodes.entity_config_path(entity)
        data = znodes.encode_configs(configs)
        if version is not None:
            is_needed = configs or await tree.children(path)
            return [SetData(path, data, version) if is_needed else Delete(path, version)]
        missing: list[TreeOperation] = []
        parent = parent_of(path)
        while not await tree.exists(parent):
            missing.insert(0, Create(parent))
            parent = parent_of(parent)
        return [*missing, Create(path, data)]

    async def changes_of(self, entity: str) -> list[Change]:
        """Returns the change of an announced entity: an empty list if the image has its configs already."""
        store = self._store
        (node,) = await store.tree.get_many([znodes.entity_config_path(entity)])
        try:
            configs = {} if node is None else znodes.decode_configs(node.data)
        except znodes.BadNode as failure:
            logger.error("Ignored a change of %s: %s", znodes.entity_config_path(entity), failure)
            return []
        kind, _slash, name = entity.partition("/")
        if kind != "topics":
            return [] if configs == store.image.configs_of(entity) else [EntityConfigsChanged(entity, configs)]
        topic = store.image.topic(name)
        return [] if topic is None or configs == topic.configs else [TopicConfigsChanged(name, configs)]


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in after.items() if before.get(name) != text}


def warn_of_inactive(owner: str, configs: Mapping[str, str], table: Mapping[str, ConfigKey[Any]]) -> None:
    """Logs a warning for each config that is stored but has no effect."""
    for name in configs:
        prefixed = split_name(name)
        key = table.get(name if prefixed is None else prefixed.base)
        if key is None or not key.has_effect:
            logger.warning("Config %s of %s is stored, but has no effect in kbroker", name, owner)
