"""Watcher with one task for each connection, for systems without epoll. Slower than EpollWatcher, same behaviour."""

from __future__ import annotations

import socket
from collections.abc import Callable

import trio

from kbroker.server.wire.connection import Connection
from kbroker.server.wire.listener import Listener
from kbroker.server.wire.network import Network
from kbroker.server.wire.read_ahead import ReadAhead
from kbroker.server.wire.sendfile import SendableSlice

__all__ = ["TaskWatcher"]

_ACCEPT_PAUSE = 0.1


class _Watch:
    """Events that the task of one connection waits for."""

    __slots__ = ("has_writer", "is_due", "reading", "resumed", "waiting", "writing")

    def __init__(self) -> None:
        self.reading = True
        self.writing = False
        self.is_due = False
        self.has_writer = False
        self.resumed = trio.Event()
        self.waiting: trio.CancelScope | None = None  # not None while the task waits for its socket


class TaskWatcher:
    def __init__(
        self, network: Network, listener: Listener, nursery: trio.Nursery, forgotten: Callable[[Connection], None]
    ) -> None:
        self._network = network
        self._listener = listener
        self._nursery = nursery
        self._forgotten = forgotten
        self._watches: dict[Connection, _Watch] = {}
        self._read_ahead = ReadAhead(nursery)
        self._accepting = trio.CancelScope()

    # Called by connections

    def watch(self, connection: Connection, *, reading: bool, writing: bool) -> None:
        watch = self._watches[connection]
        watch.reading = reading
        watch.writing = writing
        if reading:
            watch.resumed.set()
        if writing and not watch.has_writer:
            watch.has_writer = True
            self._nursery.start_soon(self._write, connection, watch)

    def call_again(self, connection: Connection) -> None:
        watch = self._watches[connection]
        watch.is_due = True
        watch.resumed.set()
        if watch.waiting is not None:
            watch.waiting.cancel()

    def forget(self, connection: Connection) -> None:
        watch = self._watches.pop(connection)
        watch.writing = False
        watch.resumed.set()
        trio.lowlevel.notify_closing(connection.fileno())
        self._forgotten(connection)

    def read_ahead(self, file_slice: SendableSlice, position: int, size: int, done: Callable[[], None]) -> None:
        self._read_ahead.start(file_slice, position, size, done)

    # Called by the server

    async def run(self) -> None:
        with self._accepting:
            async with trio.open_nursery() as nursery:
                for sock in self._listener.sockets:
                    nursery.start_soon(self._accept, sock)

    def stop_accepting(self) -> None:
        self._accepting.cancel()

    def close(self) -> None:
        pass

    # Inside

    async def _accept(self, sock: socket.socket) -> None:
        while not self._accepting.cancel_called:  # the socket may be closed during the pause
            await trio.lowlevel.wait_readable(sock)
            if not self._listener.on_acceptable(sock, self, self._opened):
                await trio.sleep(_ACCEPT_PAUSE)

    def _opened(self, connection: Connection) -> None:
        watch = self._watches[connection] = _Watch()
        self._nursery.start_soon(self._read, connection, watch)

    async def _read(self, connection: Connection, watch: _Watch) -> None:
        while not connection.is_closed:
            if watch.is_due:
                watch.is_due = False
                await trio.lowlevel.checkpoint()
                self._call(connection, connection.on_turn)
            elif watch.reading:
                try:
                    with trio.CancelScope() as watch.waiting:
                        await trio.lowlevel.wait_readable(connection.fileno())
                except trio.ClosedResourceError:
                    return
                finally:
                    watch.waiting = None
                if not watch.is_due:
                    self._call(connection, connection.on_readable)
            else:
                watch.resumed = trio.Event()
                await watch.resumed.wait()

    def _call(self, connection: Connection, method: Callable[[], None]) -> None:
        run = self._network.run
        run.begin(self._network.clock.monotonic())
        if self._listener.tls_state is not None:
            self._listener.tls_state.begin_round()
        try:
            self._network.call(connection, method)
        finally:
            run.end()

    async def _write(self, connection: Connection, watch: _Watch) -> None:
        while watch.writing:
            try:
                await trio.lowlevel.wait_writable(connection.fileno())
            except trio.ClosedResourceError:
                return
            self._call(connection, connection.on_writable)
        watch.has_writer = False
