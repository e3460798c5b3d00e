"""Broker status for the metrics and health endpoints: the broker's state, and the parts that they read.

Written only by `broker.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING

from kbroker.replication.cleaning.log_cleaner import LogCleaner
from kbroker.replication.flusher import Flusher
from kbroker.replication.peers import Peers
from kbroker.server.context import Context
from kbroker.server.requests.dispatch import Dispatch
from kbroker.server.wire.network import Network

if TYPE_CHECKING:
    from kbroker.controller.trees.session_stats import SessionStats
    from kbroker.replication.fetching.replica_fetchers import ReplicaFetchers
    from kbroker.server.authentication.sasl_listener import SaslListener
    from kbroker.server.listener_tls import ReloadableTls

__all__ = ["BrokerState", "BrokerStatus"]


class BrokerState(IntEnum):
    """Kafka's values of the BrokerState metric."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    SHUTTING_DOWN = 7


_WHY_NOT_READY = {
    BrokerState.NOT_RUNNING: "not running",
    BrokerState.STARTING: "starting",
    BrokerState.RECOVERY: "recovering logs",
    BrokerState.SHUTTING_DOWN: "stopping",
}


class BrokerStatus:
    __slots__ = (
        "cleaner",
        "context",
        "dispatch",
        "fetchers",
        "flusher",
        "network",
        "peers",
        "sasl_listeners",
        "state",
        "tls_listeners",
        "version",
        "zookeeper_session",
    )

    def __init__(self, version: str = "") -> None:
        """`version`: the release of kbroker; empty if unknown."""
        self.version = version
        self.state = BrokerState.NOT_RUNNING
        self.context: Context | None = None
        self.network: Network | None = None
        self.dispatch: Dispatch | None = None
        self.cleaner: LogCleaner | None = None
        self.flusher: Flusher | None = None
        self.peers: Peers | None = None
        self.sasl_listeners: Mapping[str, SaslListener] = {}
        self.tls_listeners: Mapping[str, ReloadableTls] = {}
        self.fetchers: ReplicaFetchers | None = None  # None on a single node
        self.zookeeper_session: SessionStats | None = None  # None on a single node

    def why_not_ready(self) -> str | None:
        """Returns why the broker is not ready for clients, or None if it is ready."""
        if self.state in _WHY_NOT_READY or self.context is None:
            return _WHY_NOT_READY.get(self.state, "starting")
        gates = self.context.log_dirs.gates.values()
        if gates and all(gate.is_offline for gate in gates):
            return "every data directory is offline"
        return None
