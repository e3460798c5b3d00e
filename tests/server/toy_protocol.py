"""A protocol for tests of the sockets: the first byte of a frame selects the handler's action."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

from kbroker.clock import SystemClock
from kbroker.errors import PeerError
from kbroker.server.requests.run import Run
from kbroker.server.wire.connection import Connection
from kbroker.server.wire.request_slot import RequestSlot
from kbroker.server.wire.sendfile import SendableSlice

S = TypeVar("S", bound=trio.abc.Stream)


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def split(stream: bytes) -> list[bytes]:
    bodies = []
    while stream:
        (length,) = struct.unpack_from(">i", stream)
        assert len(stream) >= 4 + length, "the stream ends inside a frame"
        bodies.append(stream[4 : 4 + length])
        stream = stream[4 + length :]
    return bodies


class Slice:
    """A SendableSlice of a real file descriptor, or of bytes if the descriptor is negative."""

    def __init__(
        self, descriptor: int, position: int, size: int, *, content: bytes = b"", is_hot_tail: bool = True
    ) -> None:
        self.descriptor = descriptor
        self.position = position
        self.size = size
        self.content = content
        self.is_hot_tail = is_hot_tail
        self.valid = True
        self.released = 0

    def fileno(self) -> int:
        return self.descriptor

    def is_valid(self) -> bool:
        return self.valid

    def read(self) -> bytes:
        if self.descriptor < 0:
            return self.content[self.position : self.position + self.size]
        return os.pread(self.descriptor, self.size, self.position)

    def release(self) -> None:
        self.released += 1


class ToyHandler:
    """e: echo, n: no response, p: park, s: a slice, b: many bytes, x: PeerError, !: a bug, c: close."""

    def __init__(self) -> None:
        self.handled = 0
        self.parked: list[tuple[RequestSlot, bytes]] = []
        self.cancelled: list[bytes] = []
        self.make_slice: Callable[[bytes], SendableSlice] | None = None
        self.connections: list[Connection] = []
        self.runs = 0
        self.on_end_run: Callable[[], None] = lambda: None
        self.on_frame: Callable[[bytes], None] = lambda body: None
        self.run = Run(SystemClock())
        self._is_in_run = False

    def open_session(self) -> object:
        return None

    def handle(self, connection: Connection, frame_view: memoryview, slot: RequestSlot) -> None:
        self.handled += 1
        if not self._is_in_run:
            self._is_in_run = True
            self.run.flush_at_end(self._end_run)
        if connection not in self.connections:
            self.connections.append(connection)
        body = bytes(frame_view)
        self.on_frame(body)
        match body[:1]:
            case b"e":
                slot.complete([frame(body)])
            case b"n":
                slot.complete(())
            case b"p":
                slot.on_cancel = lambda: self.cancelled.append(body)
                self.parked.append((slot, body))
            case b"s":
                assert self.make_slice is not None
                file_slice = self.make_slice(body)
                slot.complete([struct.pack(">i", file_slice.size), file_slice])
            case b"b":
                slot.complete([frame(b"B" * int(body[1:]))])
            case b"x":
                raise PeerError("the toy protocol refuses")
            case b"c":
                connection.close()
            case _:
                raise ZeroDivisionError("a bug in the handler")

    def _end_run(self) -> None:
        self._is_in_run = False
        self.runs += 1
        self.on_end_run()

    def complete(self, index: int) -> None:
        slot, body = self.parked[index]
        slot.complete([frame(body)])


class FrameClient(Generic[S]):
    """Client that sends and receives frames over a stream."""

    def __init__(self, stream: S) -> None:
        self.stream = stream
        self._received = bytearray()

    async def send(self, *bodies: bytes) -> None:
        await self.stream.send_all(b"".join(map(frame, bodies)))

    async def receive(self) -> bytes:
        while len(self._received) < 4 or len(self._received) < 4 + struct.unpack_from(">i", self._received)[0]:
            chunk = await self.stream.receive_some()
            if not chunk:
                raise EOFError
            self._received += chunk
        (length,) = struct.unpack_from(">i", self._received)
        body = bytes(self._received[4 : 4 + length])
        del self._received[: 4 + length]
        return body

    async def is_ended(self) -> bool:
        try:
            return await self.stream.receive_some(1) == b""
        except trio.BrokenResourceError:
            return True
