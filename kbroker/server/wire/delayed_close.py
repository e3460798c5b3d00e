"""Refused sockets that are closed a little later: a client whose connection is closed at once reconnects at once."""

from __future__ import annotations

import socket

__all__ = ["DelayedClose"]

_MAX_SOCKETS = 1000


class DelayedClose:
    __slots__ = ("_sockets",)

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def add(self, refused: socket.socket) -> None:
        """Keeps the socket until `close_all`; closes it now if too many are kept already."""
        if len(self._sockets) < _MAX_SOCKETS:
            self._sockets.append(refused)
        else:
            refused.close()

    def close_all(self) -> None:
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            sock.close()
