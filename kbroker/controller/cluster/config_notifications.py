"""Follows the config changes that brokers announce below /config/changes, and reads the changed configs.

Every broker follows them, so that a config can be altered at any broker. The controller deletes old announcements.
"""

from __future__ import annotations

from typing import Final

from kbroker.clock import Clock
from kbroker.controller.cluster.event_queue import Event
from kbroker.controller.cluster.node_watches import NodeWatches
from kbroker.controller.config_writer import ConfigWriter
from kbroker.controller.metadata_store import MetadataStore
from kbroker.controller.trees import znodes
from kbroker.controller.trees.tree import Delete, NoNode, Tree

__all__ = ["ConfigNotifications"]

# Kafka's value: long enough for every broker to have seen an announcement.
_EXPIRATION_MS: Final = 15 * 60_000


class ConfigNotifications:
    def __init__(
        self, store: MetadataStore, configs: ConfigWriter, tree: Tree, watches: NodeWatches, clock: Clock
    ) -> None:
        self._store = store
        self._configs = configs
        self._tree = tree
        self._watches = watches
        self._clock = clock
        self._seen: dict[str, int] = {}
        """Names of announcements, and when this broker first saw them (ms)."""

    async def process(self) -> None:
        """Applies announcements that this broker has not seen yet."""
        async with self._store.exclusive():
            watch = self._watches.watch(znodes.CONFIG_CHANGES, Event.CONFIGS)
            names = await self._tree.children(znodes.CONFIG_CHANGES, watch)
            now_ms = self._clock.now_ms()
            unseen = [name for name in names if name not in self._seen]
            nodes = await self._tree.get_many([f"{znodes.CONFIG_CHANGES}/{name}" for name in unseen])
            entities = dict.fromkeys(znodes.decode_config_change(node.data) for node in nodes if node is not None)
            for entity in entities:
                if entity is not None:
                    self._store.commit(await self._configs.changes_of(entity))
            # Only now: if a read above fails, the announcements are processed again.
            self._seen = {name: self._seen.get(name, now_ms) for name in names}
            if self._store.is_active:
                await self._delete_old(now_ms)

    async def _delete_old(self, now_ms: int) -> None:
        old = [name for name, seen_ms in self._seen.items() if now_ms - seen_ms > _EXPIRATION_MS]
        try:
            await self._store.write([Delete(f"{znodes.CONFIG_CHANGES}/{name}") for name in old])
        except NoNode:
            return  # every broker of Apache Kafka deletes old announcements, and one of them was quicker
