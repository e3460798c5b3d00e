"""Changes configs of an entity in a tree while no broker needs to run: the first user of a secured cluster."""

from __future__ import annotations

from kbroker.config.broker import BrokerConfig
from kbroker.controller.config_writer import ConfigsUpdate, ConfigWriter
from kbroker.controller.metadata_loader import ensure_layout
from kbroker.controller.metadata_store import MetadataStore
from kbroker.controller.trees.tree import Tree

__all__ = ["update_offline"]

_NO_BROKER = -1


async def update_offline(tree: Tree, entity: str, update: ConfigsUpdate) -> None:
    """Changes the configs of an entity, and announces the change to brokers that may run. Creates missing nodes."""
    await ensure_layout(tree)
    store = MetadataStore(tree, broker_id=_NO_BROKER, config=BrokerConfig.from_properties({}))
    await ConfigWriter(store, is_shared=True).update_entity(entity, update, validate_only=False)
