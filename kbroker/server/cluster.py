"""Creates the parts of a broker that exist only in a ZooKeeper cluster. A single node never imports their modules."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kbroker.clock import Clock
from kbroker.config.broker import BrokerConfig
from kbroker.controller.controller import Controller
from kbroker.controller.registration import generate_broker_id
from kbroker.controller.trees.tree import Tree
from kbroker.errors import UserError
from kbroker.log.files.directory_metadata import read_meta_properties
from kbroker.log.files.filesystem import OsFileSystem
from kbroker.replication.flusher import Flusher
from kbroker.replication.partition_table import PartitionTable

if TYPE_CHECKING:
    from kbroker.client.connection_security import ConnectionSecurity
    from kbroker.client.frames import SocketWatch
    from kbroker.controller.cluster.cluster_member import ClusterMember
    from kbroker.controller.trees.zookeeper_tree import ZooKeeperTree
    from kbroker.coordinator.broker_channels import Connect
    from kbroker.replication.fetching.replica_fetchers import ReplicaFetchers
    from kbroker.security.client_login import ClientLogin

__all__ = [
    "EMBEDDED_BROKER_ID",
    "connect_to_broker",
    "find_broker_id",
    "inter_broker_security",
    "new_fetchers",
    "new_member",
    "open_shared_tree",
]

EMBEDDED_BROKER_ID: Final = 1


@asynccontextmanager
async def open_shared_tree(config: BrokerConfig) -> AsyncIterator[ZooKeeperTree]:
    """Opens a session with the ZooKeeper of `zookeeper.connect`."""
    from kbroker.controller.trees.zookeeper_tree import open_zookeeper_tree
    from kbroker.security.zookeeper_security import zookeeper_security

    assert config.zookeeper_connect
    async with open_zookeeper_tree(
        config.zookeeper_connect,
        session_timeout_ms=config.zookeeper_session_timeout_ms,
        connection_timeout_ms=config.zookeeper_connection_timeout_ms,
        security=zookeeper_security(config),
    ) as tree:
        yield tree


async def find_broker_id(config: BrokerConfig, shared: Tree | None, paths: Sequence[str]) -> int:
    """Returns the configured id, or the one in the data directories, or a new one. `shared`: None on a single node."""
    if config.broker_id >= 0:
        return config.broker_id
    if shared is None:
        return EMBEDDED_BROKER_ID
    kept = {text for path in paths if (text := read_meta_properties(OsFileSystem(), path).get("broker.id"))}
    if len(kept) > 1:
        raise UserError(
            f"The directories of log.dirs belong to several brokers: broker.id={', '.join(sorted(kept))}. "
            "Use directories of one broker only."
        )
    if kept:
        return int(kept.pop())
    return await generate_broker_id(shared, reserved_max_id=config.reserved_broker_max_id)


def inter_broker_security(config: BrokerConfig) -> ConnectionSecurity | None:
    """Returns the settings of connections to the listener between brokers; None if it is PLAINTEXT.

    Raises UserError if its configs cannot work: the broker could not be part of the cluster.
    """
    endpoint = config.inter_broker_endpoint
    if endpoint.security_protocol == "PLAINTEXT":
        return None
    from kbroker.client.connection_security import ConnectionSecurity

    tls = None
    if endpoint.security_protocol.endswith("SSL"):
        from kbroker.client.client_tls import ClientTls

        tls = ClientTls(config.listener_config(endpoint.name))
    login = _inter_broker_login(config) if endpoint.security_protocol.startswith("SASL_") else None
    return ConnectionSecurity(login, tls)


def _inter_broker_login(config: BrokerConfig) -> ClientLogin:
    from kbroker.security.client_login import login_of_jaas, login_of_token, token_file
    from kbroker.security.mechanism import OAUTHBEARER

    name = config.inter_broker_endpoint.name
    listener_config = config.listener_config(name)
    mechanism = listener_config.sasl_mechanism_inter_broker_protocol
    if mechanism not in listener_config.sasl_enabled_mechanisms:
        raise UserError(
            f"sasl.mechanism.inter.broker.protocol={mechanism} must be one of sasl.enabled.mechanisms of the listener "
            f"between brokers, {name}"
        )
    source = f"listener.name.{name.lower()}.{mechanism.lower()}.sasl.jaas.config"
    listener_config = config.listener_config(name, mechanism)
    if mechanism == OAUTHBEARER:
        url = listener_config.sasl_oauthbearer_token_endpoint_url
        return login_of_token(Path(token_file(url, source=source)).read_text)
    if source not in config.texts or listener_config.sasl_jaas_config is None:
        raise UserError(
            f"{source} is missing: set it, brokers authenticate to each other with its username and password"
        )
    return login_of_jaas(mechanism, listener_config.sasl_jaas_config.value, source=source)


def connect_to_broker(
    security: ConnectionSecurity | None, watch: Callable[[], SocketWatch | None] = lambda: None
) -> Connect:
    """Returns the function that connects to the listener between brokers. `watch` is called for each connection."""
    from kbroker.client.connection import connect

    return lambda address, **options: connect(address, security=security, watch=watch(), **options)


def new_member(
    controller: Controller,
    tree: Tree,
    broker_id: int,
    config: BrokerConfig,
    clock: Clock,
    security: ConnectionSecurity | None,
) -> ClusterMember:
    from kbroker.controller.cluster.cluster_member import ClusterMember

    return ClusterMember(
        controller,
        tree,
        broker_id=broker_id,
        config=config,
        clock=clock,
        random_bytes=os.urandom,
        connect=connect_to_broker(security),
    )


def new_fetchers(
    table: PartitionTable,
    flusher: Flusher,
    config: BrokerConfig,
    clock: Clock,
    broker_id: int,
    security: ConnectionSecurity | None,
) -> ReplicaFetchers:
    from kbroker.replication.fetching.replica_fetchers import ReplicaFetchers

    fetchers = ReplicaFetchers(table, flusher, config, clock, broker_id=broker_id)
    fetchers.security = security
    return fetchers
