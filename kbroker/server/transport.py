"""The bytes of one connection, in and out, without waiting. TLS will be another transport.

Each call either moves bytes at once or raises BlockingIOError; any other OSError means that the peer is gone.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol

from kbroker.server.sendfile import SliceSender, slice_sender

__all__ = ["BYTES", "PlainTransport", "Sendable", "Transport"]

Sendable = bytes | bytearray | memoryview
BYTES = (bytes, bytearray, memoryview)  # the same for isinstance, which is faster on a tuple


class Transport(Protocol):
    # Attributes, not methods: they are the socket's own bound calls, so that the seam costs nothing.
    recv_into: Callable[[memoryview], int]
    send: Callable[[Sendable], int]
    send_more: Callable[[Sendable], int]  # more follows at once: the kernel may put it into one packet
    send_slice: SliceSender

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class PlainTransport:
    __slots__ = ("recv_into", "send", "send_more", "send_slice", "socket")

    def __init__(self, sock: socket.socket, *, portable: bool = False) -> None:
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.socket = sock
        self.recv_into: Callable[[memoryview], int] = sock.recv_into
        self.send: Callable[[Sendable], int] = sock.send
        self.send_more = _more_sender(sock)
        self.send_slice: SliceSender = slice_sender(sock, portable=portable)

    def limit_buffers(self, send_bytes: int, receive_bytes: int) -> None:
        """What the system may hold in either direction; -1 leaves it to the system."""
        for option, size in ((socket.SO_SNDBUF, send_bytes), (socket.SO_RCVBUF, receive_bytes)):
            if size >= 0:
                self.socket.setsockopt(socket.SOL_SOCKET, option, size)

    def fileno(self) -> int:
        return self.socket.fileno()

    def close(self) -> None:
        self.socket.close()


def _more_sender(sock: socket.socket) -> Callable[[Sendable], int]:
    flag = getattr(socket, "MSG_MORE", 0)
    send = sock.send

    def send_more(data: Sendable) -> int:
        return send(data, flag)

    return send_more
