"""Configs and quotas, written and announced. In a cluster any broker may do this; who comes second reads anew.

Every broker follows the announcements (see `ClusterMember`); the one that writes has its change at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from kbroker.config import BROKER_CONFIGS, TOPIC_CONFIGS, ConfigKey, validate_topic_configs
from kbroker.controller import znodes
from kbroker.controller.changes import Change, EntityConfigsChanged, TopicConfigsChanged
from kbroker.controller.ledger import Ledger
from kbroker.controller.tree import (
    BadVersion,
    ConnectionLost,
    Create,
    Delete,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    SessionLost,
    SetData,
    parent_of,
)
from kbroker.controller.writes import announcement
from kbroker.errors import Refusal
from kbroker.group_config import GROUP_CONFIGS
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["ConfigWriter", "ConfigsUpdate", "warn_of_inactive"]

logger = logging.getLogger(__name__)

ConfigsUpdate = Callable[[Mapping[str, str]], Mapping[str, str]]
"""From the configs as they are to the configs as they shall be; raises a Refusal where they must not."""

# Clients are never asked for their metrics. Quotas are checked by whoever sets them, and all of them act.
_TABLES: Final[Mapping[str, Mapping[str, ConfigKey[Any]]]] = {
    "brokers": BROKER_CONFIGS,
    "groups": GROUP_CONFIGS,
    "client-metrics": {},
}


class ConfigWriter:
    def __init__(self, ledger: Ledger, *, is_shared: bool) -> None:
        """`is_shared`: other brokers write configs too."""
        self._ledger = ledger
        self._is_shared = is_shared

    async def update_topic(self, name: str, update: ConfigsUpdate, *, validate_only: bool) -> None:
        path = znodes.topic_config_path(name)
        while True:
            topic = self._ledger.image.topic(name)
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
            # A tree that somebody else wrote may lack the node: no configs, no node.
            is_there = await self._ledger.tree.exists(path) is not None
            write: Operation = SetData(path, data, version) if is_there else Create(path, data)
            if await self._write([write, announcement(f"topics/{name}")]):
                break
        if name in self._ledger.image.topics:  # else we were told meanwhile that it is gone
            self._ledger.commit([TopicConfigsChanged(name, configs)])
        warn_of_inactive(f"topic {name}", _changed(before, configs), TOPIC_CONFIGS)

    async def update_entity(self, entity: str, update: ConfigsUpdate, *, validate_only: bool) -> None:
        path = znodes.entity_config_path(entity)
        while True:
            before, version = await self._read(path, self._ledger.image.configs_of(entity))
            configs = dict(update(before))
            if validate_only or configs == before:
                return
            if await self._write([*await self._entity_nodes(entity, configs, version), announcement(entity)]):
                break
        self._ledger.commit([EntityConfigsChanged(entity, configs)])
        table = _TABLES.get(entity.partition("/")[0])
        if table is not None:
            warn_of_inactive(entity, _changed(before, configs), table)

    async def _read(self, path: str, known: Mapping[str, str]) -> tuple[Mapping[str, str], int]:
        """What is changed, and the version that the change expects: what is known is true where nobody else writes."""
        if not self._is_shared:
            return known, -1
        (node,) = await self._ledger.tree.get_many([path])
        return ({}, -1) if node is None else (znodes.decode_configs(node.data), node.stat.version)

    async def _write(self, operations: list[Operation]) -> bool:
        """False: another broker was quicker, and what was read is to be read again."""
        if not self._is_shared:
            await self._ledger.write(operations)
            return True
        try:
            await self._ledger.tree.multi(operations)
        except (BadVersion, NodeExists, NoNode, NotEmpty):
            return False
        except (ConnectionLost, SessionLost) as failure:
            raise Refusal(ErrorCode.REQUEST_TIMED_OUT, "The metadata store did not answer.") from failure
        return True

    async def _entity_nodes(self, entity: str, configs: Mapping[str, str], version: int) -> list[Operation]:
        """A node without configs goes, unless others hang from it."""
        tree = self._ledger.tree
        path = znodes.entity_config_path(entity)
        data = znodes.encode_configs(configs)
        if await tree.exists(path):
            is_needed = configs or await tree.children(path)
            return [SetData(path, data, version) if is_needed else Delete(path, version)]
        missing: list[Operation] = []
        parent = parent_of(path)
        while not await tree.exists(parent):
            missing.insert(0, Create(parent))
            parent = parent_of(parent)
        return [*missing, Create(path, data)]

    async def changes_of(self, entity: str) -> list[Change]:
        """What an announcement stands for: the entity as the tree has it, if that is news."""
        ledger = self._ledger
        (node,) = await ledger.tree.get_many([znodes.entity_config_path(entity)])
        configs = {} if node is None else znodes.decode_configs(node.data)
        kind, _slash, name = entity.partition("/")
        if kind != "topics":
            return [] if configs == ledger.image.configs_of(entity) else [EntityConfigsChanged(entity, configs)]
        topic = ledger.image.topic(name)
        return [] if topic is None or configs == topic.configs else [TopicConfigsChanged(name, configs)]


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in after.items() if before.get(name) != text}


def warn_of_inactive(what: str, configs: Mapping[str, str], table: Mapping[str, ConfigKey[Any]]) -> None:
    """Somebody set it: they shall find out that it does nothing."""
    for name in configs:
        if name not in table or not table[name].acts:
            logger.warning("%s of %s is kept, but has no effect in kbroker", name, what)
