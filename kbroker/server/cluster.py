"""What a broker that shares its cluster with others is built of; a cluster of one imports none of it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from kbroker.clock import Clock
from kbroker.config import BrokerConfig
from kbroker.controller.controller import Controller, generate_broker_id
from kbroker.controller.tree import Tree
from kbroker.errors import UserError
from kbroker.log.directory_metadata import read_meta_properties
from kbroker.log.filesystem import OsFileSystem
from kbroker.replication.flusher import Flusher
from kbroker.replication.partition_table import PartitionTable

if TYPE_CHECKING:
    from kbroker.controller.cluster_member import ClusterMember
    from kbroker.replication.fetcher import ReplicaFetchers

__all__ = ["EMBEDDED_BROKER_ID", "find_broker_id", "new_fetchers", "new_member", "open_shared_tree"]

EMBEDDED_BROKER_ID: Final = 1


@asynccontextmanager
async def open_shared_tree(config: BrokerConfig) -> AsyncIterator[Tree]:
    """The ZooKeeper that `zookeeper.connect` names."""
    from kbroker.controller.zookeeper_tree import open_zookeeper_tree

    assert config.zookeeper_connect
    async with open_zookeeper_tree(
        config.zookeeper_connect,
        session_timeout_ms=config.zookeeper_session_timeout_ms,
        connection_timeout_ms=config.zookeeper_connection_timeout_ms,
    ) as tree:
        yield tree


async def find_broker_id(config: BrokerConfig, shared: Tree | None, paths: Sequence[str]) -> int:
    """The id that is set, or the one that the data directories were made with, or a new one."""
    if config.broker_id >= 0:
        return config.broker_id
    if shared is None:
        return EMBEDDED_BROKER_ID
    kept = {text for path in paths if (text := read_meta_properties(OsFileSystem(), path).get("broker.id"))}
    if len(kept) > 1:
        raise UserError(f"the data directories belong to several brokers: {', '.join(sorted(kept))}")
    if kept:
        return int(kept.pop())
    return await generate_broker_id(shared, reserved_max_id=config.reserved_broker_max_id)


def new_member(controller: Controller, tree: Tree, broker_id: int, config: BrokerConfig, clock: Clock) -> ClusterMember:
    from kbroker.controller.cluster_member import ClusterMember

    return ClusterMember(controller, tree, broker_id=broker_id, config=config, clock=clock, random_bytes=os.urandom)


def new_fetchers(
    table: PartitionTable, flusher: Flusher, config: BrokerConfig, clock: Clock, broker_id: int
) -> ReplicaFetchers:
    from kbroker.replication.fetcher import ReplicaFetchers

    return ReplicaFetchers(table, flusher, config, clock, broker_id=broker_id)
