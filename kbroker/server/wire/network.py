"""State that all connections of a broker share: handler of their frames, limits, memory, quotas, a coarse clock.

Serves no socket and knows no task. `SocketServer` calls `sweep` about once a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from kbroker.clock import Clock
from kbroker.server.wire.connection_limits import ConnectionLimits, ConnectionQuotas
from kbroker.server.wire.connection_reports import ConnectionReports
from kbroker.server.wire.delayed_close import DelayedClose
from kbroker.server.wire.loop_load import LoopLoad
from kbroker.server.wire.memory_budget import MemoryBudget
from kbroker.server.wire.pending_logins import PendingLogins
from kbroker.server.wire.request_slot import RequestSlot

if TYPE_CHECKING:
    from kbroker.server.wire.connection import Connection

__all__ = ["ConnectionRun", "FrameHandler", "Network"]

_HOLDS_MEMORY: Final = "other connections wait for the memory that it holds and does not use"


class ConnectionRun(Protocol):
    """Run of requests, as far as connections and watchers know it: `begin`, call connections, `end`. Never nested."""

    @property
    def busy_ms(self) -> float:
        """Returns the sum of the durations of all runs."""
        ...

    def begin(self, now: float) -> None:
        """Opens the run. `now` is the time of its poll, on the monotonic clock."""
        ...

    def add_connection(self, connection: Connection) -> bool:
        """Adds a connection whose `end_run` is to be called at the end. Returns False if no run is open."""
        ...

    def end(self) -> float:
        """Finishes the requests of all frames, then calls `end_run` of the connections: frames are valid until then.

        Returns the time, on the monotonic clock.
        """
        ...


class FrameHandler(Protocol):
    @property
    def run(self) -> ConnectionRun: ...

    def open_session(self) -> object:
        """Returns the handler's own state for a new connection. `wire` only carries it, as `Connection.session`."""
        ...

    def handle(self, connection: Connection, frame: memoryview, slot: RequestSlot) -> None:
        """Answers one request: completes the slot now, or keeps it and completes it later. Never waits.

        `frame` is valid until the run ends. Raises PeerError if the connection must be closed.
        """
        ...


class Network:
    __slots__ = (
        "budget",
        "clock",
        "connections",
        "delayed_close",
        "handler",
        "has_peers",
        "is_loop_shared",
        "limits",
        "load",
        "logins",
        "now",
        "quotas",
        "reports",
        "run",
    )

    def __init__(self, handler: FrameHandler, limits: ConnectionLimits, clock: Clock) -> None:
        self.handler = handler
        self.run = handler.run
        self.limits = limits
        self.clock = clock
        self.budget = MemoryBudget(limits.queued_max_request_bytes)
        self.quotas = ConnectionQuotas(limits)
        self.connections: set[Connection] = set()
        self.now = clock.monotonic()  # as of the last sweep: precise enough for idle times, and costs no call
        self.reports = ConnectionReports(self.now)
        self.load = LoopLoad(self.now)
        self.delayed_close = DelayedClose()
        self.logins = PendingLogins(limits.max_login_ms / 1000)
        self.is_loop_shared = False
        """Whether another task of this loop waits for sockets. Then a watcher may wait only in trio."""
        self.has_peers = False
        """Whether this broker follows others. Then a watcher does not poll without sleeping, for most events are of
        brokers, which take longer; and other tasks, which wait for brokers too, get the loop more often."""

    def sweep(self) -> None:
        """Closes idle connections, shrinks unused buffers, and closes stalled connections if others wait for memory."""
        now = self.clock.monotonic()
        last_sweep, self.now = self.now, now
        max_idle = self.limits.max_idle_ms / 1000
        for connection in list(self.connections):
            if connection.last_active < last_sweep:
                connection.reader.shrink()
                if 0 <= max_idle <= now - connection.last_active and connection.is_idle():
                    connection.close()
        for connection in self.logins.overdue(now):
            connection.drop(f"it did not log in within {self.limits.max_login_ms // 1000} s")
        waited = self.budget.longest_wait(now)
        if waited is not None and not self._close_stalled() and waited * 1000 >= self.limits.max_memory_wait_ms:
            self._close_largest_holder()
        self.quotas.forget_idle(now)
        self.delayed_close.close_all()
        self.reports.on_sweep()
        self.load.on_sweep(now, self.run.busy_ms)

    def call(self, connection: Connection, method: Callable[[], None]) -> None:
        """Calls a method of the connection. A bug there closes this connection and no other."""
        try:
            method()
        except Exception as error:
            self.close_after_bug(connection, error)

    def close_after_bug(self, connection: Connection, error: Exception) -> None:
        self.reports.closing_after_bug(connection, error)
        connection.close()

    def _close_stalled(self) -> bool:
        """Closes every connection that holds memory without progress. Returns False if there is none."""
        max_seconds = self.limits.max_stall_ms / 1000
        stalled = [connection for connection in self.connections if connection.is_stalled(self.now, max_seconds)]
        for connection in stalled:
            self.reports.closing(connection, _HOLDS_MEMORY)
            connection.close()
        return bool(stalled)

    def _close_largest_holder(self) -> None:
        largest = max(self.connections, key=lambda connection: connection.stuck_bytes(), default=None)
        if largest is not None and largest.stuck_bytes() > 0:
            self.reports.closing(largest, _HOLDS_MEMORY)
            largest.close()
