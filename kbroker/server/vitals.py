"""How a broker is, for whoever looks from outside: its state and, once they exist, the parts to read from.

`broker.py` fills it in; nobody who reads it changes anything.
"""

from __future__ import annotations

from enum import IntEnum

from kbroker.replication.log_cleaner import LogCleaner
from kbroker.server.context import Context
from kbroker.server.dispatch import Dispatch
from kbroker.server.network import Network

__all__ = ["BrokerState", "Vitals"]


class BrokerState(IntEnum):
    """The numbers are Kafka's own."""

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


class Vitals:
    __slots__ = ("cleaner", "context", "dispatch", "network", "state", "version")

    def __init__(self, version: str = "") -> None:
        """`version`: of the release, for those who want to tell it."""
        self.version = version
        self.state = BrokerState.NOT_RUNNING
        self.context: Context | None = None
        self.network: Network | None = None
        self.dispatch: Dispatch | None = None
        self.cleaner: LogCleaner | None = None

    def why_not_ready(self) -> str | None:
        """Why clients should not be sent here now; None if they may."""
        if self.state in _WHY_NOT_READY or self.context is None:
            return _WHY_NOT_READY.get(self.state, "starting")
        gates = self.context.partitions.gates.values()
        if gates and all(gate.is_offline for gate in gates):
            return "every data directory is offline"
        return None
