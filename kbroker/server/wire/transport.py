"""Sends and receives the bytes of one connection without waiting: in plaintext. TLS is in `tls_transport.py`.

Each call moves bytes at once or raises BlockingIOError. Any other OSError means that the connection is lost,
PeerError that the peer broke the protocol of the transport.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol

from kbroker.server.wire.sendfile import SliceSender, slice_sender

__all__ = ["BYTES", "PlainTransport", "SecureTransport", "Sendable", "Transport"]

Sendable = bytes | bytearray | memoryview
BYTES = (bytes, bytearray, memoryview)  # a tuple: isinstance is faster on it than on a union


class Transport(Protocol):
    # Attributes, not methods: they hold the socket's own bound methods, so that the protocol costs no extra call.
    recv_into: Callable[[memoryview], int]
    send: Callable[[Sendable], int]
    send_more: Callable[[Sendable], int]  # more bytes follow at once: the kernel may put them into one packet
    send_slice: SliceSender

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class SecureTransport(Transport, Protocol):
    """Transport that buffers received bytes."""

    has_pending: bool
    """Whether `recv_into` has more bytes that no event of the socket will report."""


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

    def set_buffer_sizes(self, send_bytes: int, receive_bytes: int) -> None:
        """Sets the sizes of the socket's buffers; -1 keeps the default of the system."""
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
