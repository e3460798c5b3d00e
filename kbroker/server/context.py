"""What handlers work with: the broker's parts, built once by `broker.py`. Holds no behaviour of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from kbroker.clock import Clock
from kbroker.config import BrokerConfig
from kbroker.controller.controller import Controller
from kbroker.coordinator.runtime import GroupCoordinator
from kbroker.coordinator.transactions import TransactionCoordinator
from kbroker.replication.partition_table import PartitionTable
from kbroker.server.append_run import AppendRun
from kbroker.server.authorization import Authorizer
from kbroker.server.deadlines import Deadlines
from kbroker.server.fetch_session import FetchSessions
from kbroker.server.interceptor import Interceptor
from kbroker.server.producer_ids import ProducerIds
from kbroker.server.quotas import Quotas

if TYPE_CHECKING:
    from kbroker.controller.cluster_member import ClusterMember

__all__ = ["Context"]


@dataclass(slots=True)
class Context:
    broker_id: int
    config: BrokerConfig
    clock: Clock
    controller: Controller
    partitions: PartitionTable
    producer_ids: ProducerIds
    fetch_sessions: FetchSessions
    authorizer: Authorizer
    deadlines: Deadlines
    append_run: AppendRun
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    quotas: Quotas
    nursery: trio.Nursery
    interceptor: Interceptor | None = None
    member: ClusterMember | None = None
    """None in a cluster of one."""
