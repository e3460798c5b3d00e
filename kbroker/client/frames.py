"""The frames of one outbound connection: sends requests, and receives responses into one buffer.

A plain socket is read and written directly. trio's stream lets all other tasks run after each send, and returns each
read in new memory: a follower fetches thousands of times a second, and up to megabytes at once.
"""

from __future__ import annotations

import os
from struct import Struct
from typing import Final

import trio

from kbroker.client.address import Address
from kbroker.client.failures import ConnectionFailed
from kbroker.errors import PeerError

__all__ = ["Frames"]

_LENGTH: Final = Struct(">i")
_CORRELATION_SIZE: Final = 4
_TLS_ALERT: Final = 0x1503  # the first two bytes of a record with an alert
_FIRST_BUFFER_BYTES: Final = 16 * 1024
_LARGEST_READ: Final = 256 * 1024  # of a stream that returns new bytes
_KEPT_BUFFER_BYTES: Final = 4 * 1024 * 1024  # a larger buffer is given up after its frame


class Frames:
    """`lends`: `receive` returns a view of the buffer, which is valid until the next call, instead of a copy."""

    def __init__(self, stream: trio.abc.Stream, address: Address, *, max_bytes: int, lends: bool = False) -> None:
        self.stream: Final = stream
        self._address = address
        self._max_bytes = max_bytes
        self._lends = lends
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        self._buffer = bytearray(_FIRST_BUFFER_BYTES)
        self._start = 0  # of what was received and not returned yet
        self._end = 0

    async def send(self, frame: bytes) -> None:
        """Sends a frame. Lets other tasks run only if it must wait: the caller waits for the response anyway."""
        sent = 0
        if self._socket is not None:
            try:
                sent = os.write(self._socket.fileno(), frame)
            except BlockingIOError:
                sent = 0
            except OSError as failure:
                raise _broken(failure) from failure
        if sent < len(frame):
            await self.stream.send_all(memoryview(frame)[sent:])

    async def receive(self) -> bytes | memoryview:
        """Receives a frame. Raises PeerError if its size is out of bounds, and ConnectionFailed at the end."""
        self._move_to_front()
        await self._fill(_LENGTH.size)
        (size,) = _LENGTH.unpack_from(self._buffer)
        if not _CORRELATION_SIZE <= size <= self._max_bytes:
            if size >> 16 == _TLS_ALERT:
                raise PeerError(f"{self._address} uses TLS, and this connection does not: set security.protocol")
            raise PeerError(
                f"{self._address} does not speak the Kafka protocol: it announced a response of {size} bytes"
            )
        end = _LENGTH.size + size
        await self._fill(end)
        self._start = end
        frame = memoryview(self._buffer)[_LENGTH.size : end]
        return frame if self._lends else bytes(frame)

    def _move_to_front(self) -> None:
        start, end = self._start, self._end
        rest = memoryview(self._buffer)[start:end]
        # The buffer is never resized: a lent view may still refer to it.
        if len(self._buffer) > _KEPT_BUFFER_BYTES:
            self._buffer = bytearray(max(_FIRST_BUFFER_BYTES, len(rest)))
        memoryview(self._buffer)[: len(rest)] = rest
        self._start, self._end = 0, len(rest)

    async def _fill(self, size: int) -> None:
        """Reads until `size` bytes are buffered.

        Allocates memory only for twice the bytes that have arrived, not for the claimed length.
        """
        while self._end < size:
            if self._end == len(self._buffer):
                larger = bytearray(min(2 * self._end, max(size, _FIRST_BUFFER_BYTES)))
                larger[: self._end] = self._buffer
                self._buffer = larger
            count = await self._read_into(memoryview(self._buffer)[self._end :])
            if not count:
                raise ConnectionFailed(self._address, f"{self._address} closed the connection")
            self._end += count

    async def _read_into(self, free: memoryview) -> int:
        if self._socket is None:
            data = await self.stream.receive_some(min(len(free), _LARGEST_READ))
            free[: len(data)] = data
            return len(data)
        while True:
            try:
                if self._socket.fileno() < 0:
                    raise trio.ClosedResourceError("this connection was closed")
                await trio.lowlevel.wait_readable(self._socket)
                return os.readv(self._socket.fileno(), [free])
            except BlockingIOError:  # something was readable for a moment: a packet with a wrong checksum
                continue
            except OSError as failure:
                raise _broken(failure) from failure


def _broken(failure: OSError) -> trio.BrokenResourceError:
    """Returns the error that a stream of trio raises."""
    return trio.BrokenResourceError(f"socket connection broken: {failure}")
