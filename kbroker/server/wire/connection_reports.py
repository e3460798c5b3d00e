"""Counts closed connections by cause, and logs events that peers can cause as often as they like, a few per second."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.server.wire.connection import Connection

__all__ = ["ConnectionReports"]

logger = logging.getLogger(__name__)

# Lines between two sweeps: a port scanner must not fill the disk with the broker's log.
_LINES_PER_SWEEP = 10
_FULL_SECONDS = 60.0


class ConnectionReports:
    __slots__ = ("_full_until", "_lines_left", "_suppressed", "peer_errors", "server_errors")

    def __init__(self, now: float) -> None:
        self.peer_errors = 0
        self.server_errors = 0
        self._lines_left = _LINES_PER_SWEEP
        self._suppressed = 0
        self._full_until = now

    def closing(self, connection: Connection, reason: str) -> None:
        """Reports that a connection is closed because of its peer, or of a file that was being sent."""
        self.peer_errors += 1
        self.line(f"Closing connection from {connection.peer} on {connection.listener_name}: {reason}")

    def closing_after_bug(self, connection: Connection, error: Exception) -> None:
        self.server_errors += 1
        logger.error(
            "Unexpected error; closing connection from %s on %s",
            connection.peer,
            connection.listener_name,
            exc_info=error,
        )

    def line(self, text: str) -> None:
        """Logs a line, unless too many were logged since the last sweep."""
        if self._lines_left > 0:
            self._lines_left -= 1
            logger.info(text)
        else:
            self._suppressed += 1

    def connections_full(self, max_connections: int, now: float) -> None:
        """Logs at most once a minute that clients wait to be accepted."""
        if now >= self._full_until:
            self._full_until = now + _FULL_SECONDS
            logger.warning(
                "Reached max.connections: new connections wait until others are closed",
                extra={"max_connections": max_connections},
            )

    def on_sweep(self) -> None:
        if self._suppressed:
            logger.info("Suppressed %d more messages about connections", self._suppressed)
        self._lines_left = _LINES_PER_SWEEP
        self._suppressed = 0
