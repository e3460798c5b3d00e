"""The broker's parts that handlers use, built once by `context_builder.py`. Has no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from kbroker.clock import Clock
from kbroker.config.broker import BrokerConfig
from kbroker.controller.controller import Controller
from kbroker.coordinator.group_coordinator import GroupCoordinator
from kbroker.coordinator.markers import Markers
from kbroker.coordinator.transaction_coordinator import TransactionCoordinator
from kbroker.replication.log_dirs import LogDirs
from kbroker.replication.partition_table import PartitionTable
from kbroker.replication.replica_moves import ReplicaMoves
from kbroker.server.access.authorization import Authorizer
from kbroker.server.configs.listener_keys import ListenerKeys
from kbroker.server.coordinators.producer_ids import ProducerIds
from kbroker.server.quotas.request_quotas import Quotas
from kbroker.server.requests.fetch_session import FetchSessions
from kbroker.server.requests.interceptor import Interceptor
from kbroker.server.requests.run import Run
from kbroker.server.requests.thread_work import ThreadWork
from kbroker.server.topics.preferred_replicas import PreferredReplicas
from kbroker.server.topics.topic_creation import AutoCreationRate
from kbroker.server.wire.deadlines import Deadlines

if TYPE_CHECKING:
    from kbroker.controller.acl_store import AclStore
    from kbroker.controller.cluster.cluster_member import ClusterMember
    from kbroker.controller.token_store import TokenStore

__all__ = ["Context"]


@dataclass(slots=True)
class Context:
    broker_id: int
    config: BrokerConfig
    clock: Clock
    controller: Controller
    partitions: PartitionTable
    log_dirs: LogDirs
    moves: ReplicaMoves
    producer_ids: ProducerIds
    fetch_sessions: FetchSessions
    authorizer: Authorizer
    deadlines: Deadlines
    run: Run
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    markers: Markers
    quotas: Quotas
    auto_creation: AutoCreationRate
    thread_work: ThreadWork
    nursery: trio.Nursery
    preferred_replicas: PreferredReplicas | None = None
    """None without a rack-aware replica selector."""
    interceptor: Interceptor | None = None
    acls: AclStore | None = None
    """None without an authorizer."""
    tokens: TokenStore | None = None
    """None without `delegation.token.secret.key`."""
    member: ClusterMember | None = None
    """None on a single node."""
    listener_keys: Mapping[str, ListenerKeys] = field(default_factory=dict)
    """Keys of each listener with TLS, by its name."""
