"""A TCP connection without TLS, which sends and receives with as few turns of the event loop as possible.

trio's own stream takes a turn for each call, also if it need not wait: a follower's fetch would take two more. Whoever
sends must wait for something afterwards, for example for the response.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final, TypeVar

import trio

__all__ = ["PlainStream"]

_READ_SIZE: Final = 256 * 1024
_FIRST_ALLOCATION: Final = 4 * 1024 * 1024

_Received = TypeVar("_Received")


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
        return await self._receive(lambda: self._socket.recv(max_bytes or _READ_SIZE))

    async def receive_rest(self, begun: bytearray, size: int) -> bytearray | None:
        """Returns `begun` and the bytes that follow it, `size` in all. None if the other side ends before that.

        The bytes arrive in their place, without a copy. The size is only a claim: allocates 4 MB, or at most twice as
        much as has arrived.
        """
        have = len(begun)
        frame = bytearray(min(size, max(have, _FIRST_ALLOCATION)))
        frame[:have] = begun
        while have < size:
            if have == len(frame):
                frame.extend(bytes(min(have, size - have)))
            with memoryview(frame) as view, view[have:] as rest:
                count = await self._receive(lambda: self._socket.recv_into(rest))
            if not count:
                return None
            have += count
        return frame

    async def _receive(self, call: Callable[[], _Received]) -> _Received:
        while True:
            self._check_open()
            await trio.lowlevel.wait_readable(self._socket)
            self._check_open()
            try:
                return call()
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
