"""Connections that have not finished their TLS handshake or their login yet. A slow one must not stay for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.server.wire.connection import Connection

__all__ = ["PendingLogins"]


class PendingLogins:
    """Begin of each login, the oldest first."""

    __slots__ = ("_began", "_max_seconds")

    def __init__(self, max_seconds: float) -> None:
        self._max_seconds = max_seconds
        self._began: dict[Connection, float] = {}

    def __len__(self) -> int:
        return len(self._began)

    def begin(self, connection: Connection, now: float) -> None:
        """`now`: on the monotonic clock."""
        self._began[connection] = now

    def finish(self, connection: Connection) -> None:
        """Ends a login: the client is known, or its connection is closed. No-op for other connections."""
        self._began.pop(connection, None)

    def overdue(self, now: float) -> list[Connection]:
        """Returns the connections whose login takes too long."""
        found = []
        for connection, began in self._began.items():
            if now - began < self._max_seconds:
                break
            found.append(connection)
        return found
