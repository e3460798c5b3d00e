"""The frames of one outbound connection: sends requests, and receives responses into one buffer.

A plain socket is read and written directly. trio's stream lets all other tasks run after each send, and returns each
read in new memory: a follower fetches thousands of times a second, and up to megabytes at once. With a `SocketWatch`
trio does not watch the socket: the watch calls a function when the socket has bytes to read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from struct import Struct
from typing import Final, Protocol

import trio

from kbroker.client.address import Address
from kbroker.client.failures import ConnectionFailed
from kbroker.errors import PeerError

__all__ = ["Frames", "SocketWatch"]

_LENGTH: Final = Struct(">i")
_CORRELATION_SIZE: Final = 4
_TLS_ALERT: Final = 0x1503  # the first two bytes of a record with an alert
_FIRST_BUFFER_BYTES: Final = 16 * 1024
_LARGEST_READ: Final = 256 * 1024  # of a stream that returns new bytes
_KEPT_BUFFER_BYTES: Final = 4 * 1024 * 1024  # a larger buffer is given up after its frame


class SocketWatch(Protocol):
    def add(self, descriptor: int, on_readable: Callable[[], None]) -> None:
        """Calls `on_readable`, which must not raise, while this socket has bytes to read, until `remove`."""
        ...

    def remove(self, descriptor: int) -> None:
        """Does nothing if the socket was not added."""
        ...


class Frames:
    """`lends`: `receive` returns a view of the buffer, which is valid until the next call, instead of a copy."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        address: Address,
        *,
        max_bytes: int,
        lends: bool = False,
        watch: SocketWatch | None = None,
    ) -> None:
        self.stream: Final = stream
        self._address = address
        self._max_bytes = max_bytes
        self._lends = lends
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        self._watch = watch if self._socket is not None else None
        self._watched = -1  # the descriptor: a socket that was closed has none
        self._buffer = bytearray(_FIRST_BUFFER_BYTES)
        self._start = 0  # of what was received and not returned yet
        self._end = 0

    async def send(self, frame: bytes) -> None:
        """Sends a frame. Lets other tasks run only if it must wait: the caller waits for the response anyway."""
        rest = self.send_now(frame)
        if rest:
            await self.stream.send_all(rest)

    def send_now(self, frame: bytes) -> memoryview:
        """Sends as much of a frame as the socket takes, and returns the rest."""
        sent = 0
        if self._socket is not None:
            try:
                sent = os.write(self._socket.fileno(), frame)
            except BlockingIOError:
                sent = 0
            except OSError as failure:
                raise _broken(failure) from failure
        return memoryview(frame)[sent:]

    async def receive(self) -> bytes | memoryview:
        """Receives a frame. Raises PeerError if its size is out of bounds, and ConnectionFailed at the end."""
        if self.is_watched:
            return await self._receive_watched()
        self._move_to_front()
        await self._fill(_LENGTH.size)
        end = self._frame_end()
        await self._fill(end)
        return self._frame(end)

    # A watched socket

    @property
    def is_watched(self) -> bool:
        return self._watch is not None

    def listen(self, on_readable: Callable[[], None]) -> None:
        """Calls `on_readable`, which must not raise, while there are bytes for `take`, until `unlisten`."""
        assert self._socket is not None
        assert self._watch is not None
        self._watched = self._socket.fileno()
        if self._watched < 0:
            raise trio.ClosedResourceError("this connection was closed")
        self._watch.add(self._watched, on_readable)

    def unlisten(self) -> None:
        """Ends `listen`, before the socket is closed: another socket may get its descriptor."""
        if self._watch is not None and self._watched >= 0:
            descriptor, self._watched = self._watched, -1
            self._watch.remove(descriptor)

    def take(self) -> bytes | memoryview | None:
        """Reads once, without waiting, and returns the frame if it is whole. Raises the errors of `receive`."""
        if self._start:
            self._move_to_front()
        size = self._frame_end() if self._end >= _LENGTH.size else _LENGTH.size
        assert self._socket is not None
        try:
            count = os.readv(self._socket.fileno(), [self._free(size)])
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as failure:
            raise _broken(failure) from failure
        self._received(count)
        return self._whole_frame()

    # Inside

    def _whole_frame(self) -> bytes | memoryview | None:
        if self._end < _LENGTH.size or self._end < (end := self._frame_end()):
            return None
        return self._frame(end)

    def _frame_end(self) -> int:
        """Returns where the frame ends, the length of which has arrived. Raises PeerError if it is out of bounds."""
        (size,) = _LENGTH.unpack_from(self._buffer)
        if not _CORRELATION_SIZE <= size <= self._max_bytes:
            if size >> 16 == _TLS_ALERT:
                raise PeerError(f"{self._address} uses TLS, and this connection does not: set security.protocol")
            raise PeerError(
                f"{self._address} does not speak the Kafka protocol: it announced a response of {size} bytes"
            )
        return _LENGTH.size + int(size)

    def _frame(self, end: int) -> bytes | memoryview:
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
        """Reads until `size` bytes are buffered."""
        while self._end < size:
            self._received(await self._read_into(self._free(size)))

    def _free(self, size: int) -> memoryview:
        """Returns the free part of the buffer, for a frame of up to `size` bytes.

        Allocates memory only for twice the bytes that have arrived, not for the claimed length.
        """
        if self._end == len(self._buffer):
            larger = bytearray(min(2 * self._end, max(size, _FIRST_BUFFER_BYTES)))
            larger[: self._end] = self._buffer
            self._buffer = larger
        return memoryview(self._buffer)[self._end :]

    def _received(self, count: int) -> None:
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

    async def _receive_watched(self) -> bytes | memoryview:
        """Waits for a whole frame: the task wakes up once, however many pieces arrive."""
        self._move_to_front()
        frame = self._whole_frame()  # it arrived with the one before
        if frame is not None:
            return frame
        is_over = trio.Event()
        arrived: list[bytes | memoryview] = []
        failures: list[Exception] = []

        def on_readable() -> None:
            try:
                frame = self.take()
                if frame is None:
                    return
                arrived.append(frame)
            except Exception as failure:  # the task raises it
                failures.append(failure)
            self.unlisten()
            is_over.set()

        self.listen(on_readable)
        try:
            await is_over.wait()
        finally:
            self.unlisten()
        if failures:
            raise failures[0]
        return arrived[0]


def _broken(failure: OSError) -> trio.BrokenResourceError:
    """Returns the error that a stream of trio raises."""
    return trio.BrokenResourceError(f"socket connection broken: {failure}")
