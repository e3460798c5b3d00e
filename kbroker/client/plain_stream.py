"""A TCP connection without TLS, which sends and receives with as few turns of the event loop as possible.

trio's own stream takes a turn for each call, also if it need not wait: a follower's fetch would take two more. Whoever
sends must wait for something afterwards, for example for the response.
"""

from __future__ import annotations

import socket
from typing import Final

import trio

__all__ = ["PlainStream"]

_READ_SIZE: Final = 256 * 1024


class PlainStream(trio.abc.Stream):
    """Has one sender and one receiver at a time: `BrokerConnection` sees to it."""

    def __init__(self, connected: trio.SocketStream) -> None:
        """Takes over the socket of `connected`, which cannot be used any more."""
        self._socket = socket.socket(fileno=connected.socket.detach())
        self._socket.setblocking(False)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Sends everything. Takes no turn of the event loop if the socket's buffer has room for it."""
        with memoryview(data) as view:
            sent = self._send(view)
            while sent < len(view):
                await self.wait_send_all_might_not_block()
                sent += self._send(view[sent:])

    def _send(self, data: memoryview) -> int:
        self._check_open()
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as failure:
            raise trio.BrokenResourceError(f"socket connection broken: {failure}") from failure

    async def wait_send_all_might_not_block(self) -> None:
        self._check_open()
        await trio.lowlevel.wait_writable(self._socket)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Returns what has arrived, after one turn of the event loop at least. b"" if the other side has ended."""
        while True:
            self._check_open()
            await trio.lowlevel.wait_readable(self._socket)
            self._check_open()
            try:
                return self._socket.recv(max_bytes or _READ_SIZE)
            except BlockingIOError:
                continue
            except OSError as failure:
                raise trio.BrokenResourceError(f"socket connection broken: {failure}") from failure

    def _check_open(self) -> None:
        if self._socket.fileno() < 0:
            raise trio.ClosedResourceError("this socket was already closed")

    async def aclose(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
        await trio.lowlevel.checkpoint()
