"""What all connections of a broker share: the handler of their frames, memory, quotas, a coarse clock, joined sends.

Serves no socket and knows no task; `sweep` is called about once a second by whoever drives it.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from kbroker.clock import Clock
from kbroker.server.connection_limits import ConnectionLimits, ConnectionQuotas
from kbroker.server.memory_budget import MemoryBudget
from kbroker.server.request_slot import RequestSlot

if TYPE_CHECKING:
    from kbroker.server.connection import Connection

__all__ = ["FrameHandler", "Network"]

logger = logging.getLogger(__name__)

# Lines about broken peers between two sweeps: a port scanner must not fill the disk with our log.
_REPORTS_PER_SWEEP = 10
_FULL_REPORT_SECONDS = 60.0
_MOST_REFUSED = 1000  # connections that nobody serves, and that are only there to be waited for


class FrameHandler(Protocol):
    def handle(self, connection: Connection, frame: memoryview, slot: RequestSlot) -> None:
        """Answer one request: complete the slot now, or keep it and complete it later. Never waits.

        `frame` is valid until `end_run`. PeerError closes the connection.
        """
        ...

    def end_run(self) -> None:
        """The frames of one or more connections are handled; nothing of theirs is sent before this returns."""
        ...


class Network:
    __slots__ = (
        "_full_until",
        "_handled",
        "_is_round_open",
        "_refused",
        "_reports_left",
        "_reports_suppressed",
        "budget",
        "clock",
        "connections",
        "handler",
        "is_joining",
        "is_loop_shared",
        "limits",
        "now",
        "peer_errors",
        "quotas",
        "server_errors",
        "woken",
    )

    def __init__(self, handler: FrameHandler, limits: ConnectionLimits, clock: Clock) -> None:
        self.handler = handler
        self.limits = limits
        self.clock = clock
        self.budget = MemoryBudget(limits.queued_max_request_bytes)
        self.quotas = ConnectionQuotas(limits)
        self.connections: set[Connection] = set()
        self.now = clock.monotonic()  # as of the last sweep: idle times need no better, and asking costs nothing
        self.peer_errors = 0
        self.server_errors = 0
        # While a run of frames is handled, connections whose head slot was completed collect here: one send for each.
        self.is_joining = False
        self.is_loop_shared = False  # somebody else in this loop waits for sockets: nobody may wait but in it
        self.woken: list[Connection] = []
        self._handled: list[Connection] = []
        self._is_round_open = False
        self._refused: list[socket.socket] = []
        self._reports_left = _REPORTS_PER_SWEEP
        self._reports_suppressed = 0
        self._full_until = self.now

    @contextmanager
    def joined_sends(self) -> Iterator[None]:
        """For whoever completes many slots in a row: each connection sends once, at the end."""
        if self.is_joining:
            yield
            return
        self.is_joining = True
        try:
            yield
        finally:
            self.finish_joining()

    def begin_round(self) -> None:
        """Until `end_round` the frames of all connections are one run, written and answered at its end.

        One write for each partition instead of one for each connection, and clients are woken together.
        """
        self._is_round_open = True

    def end_round(self) -> None:
        self._is_round_open = False
        if self.is_joining:
            self.end_run()

    def add_handled(self, connection: Connection) -> None:
        """The connection's frames are handled; it is called back when the run is over."""
        self._handled.append(connection)
        if not self._is_round_open:
            self.end_run()

    def end_run(self) -> None:
        handled, self._handled = self._handled, []
        try:
            self.handler.end_run()
        finally:
            for connection in handled:
                self.call(connection, connection.end_turn)
            self.finish_joining()

    def finish_joining(self) -> None:
        woken = self.woken
        while woken:
            connection = woken.pop()
            self.call(connection, connection.send_completed)
        self.is_joining = False

    def sweep(self) -> None:
        """Close what is idle, give back buffers that nobody uses, break up a jam of frames that never complete."""
        now = self.clock.monotonic()
        last_sweep, self.now = self.now, now
        max_idle = self.limits.max_idle_ms / 1000
        for connection in list(self.connections):
            if connection.last_active < last_sweep:
                connection.reader.shrink()
                if 0 <= max_idle <= now - connection.last_active and connection.is_idle():
                    connection.close()
        if self.budget.longest_wait(now) * 1000 >= self.limits.max_memory_wait_ms:
            self._close_largest_holder()
        self.quotas.forget_idle(now)
        self.close_refused()
        self._refill_reports()

    def close_later(self, refused: socket.socket) -> None:
        """At the next sweep: a client that is refused at once comes back at once."""
        if len(self._refused) < _MOST_REFUSED:
            self._refused.append(refused)
        else:
            refused.close()

    def close_refused(self) -> None:
        refused, self._refused = self._refused, []
        for each in refused:
            each.close()

    def report_broken_peer(self, connection: Connection, reason: str) -> None:
        self.peer_errors += 1
        self.report(f"closing {connection.peer} on {connection.listener_name}: {reason}")

    def report(self, line: str) -> None:
        """A line about something that peers can cause as often as they like."""
        if self._reports_left > 0:
            self._reports_left -= 1
            logger.info(line)
        else:
            self._reports_suppressed += 1

    def report_if_full(self) -> None:
        """Clients wait to be accepted: told once a minute, however many try."""
        if self.quotas.count >= self.limits.max_connections and self.now >= self._full_until:
            self._full_until = self.now + _FULL_REPORT_SECONDS
            fields = {"max_connections": self.limits.max_connections}
            logger.warning("max.connections is reached: new connections wait until others end", extra=fields)

    def call(self, connection: Connection, method: Callable[[], None]) -> None:
        """Call a method of this connection; a bug that shows there ends this connection and no other."""
        try:
            method()
        except Exception:
            self.server_errors += 1
            logger.exception("closing %s on %s: it met a bug", connection.peer, connection.listener_name)
            connection.close()

    def _close_largest_holder(self) -> None:
        largest = max(self.connections, key=lambda connection: connection.stuck_bytes(), default=None)
        if largest is not None and largest.stuck_bytes() > 0:
            self.report_broken_peer(largest, "others wait for the memory that it holds and does not use")
            largest.close()

    def _refill_reports(self) -> None:
        if self._reports_suppressed:
            logger.info("%d more lines like these were left out", self._reports_suppressed)
        self._reports_left = _REPORTS_PER_SWEEP
        self._reports_suppressed = 0
