"""Connections over real socket pairs, called by hand: no event loop, so every step is in the test's hands."""

from __future__ import annotations

import socket
from collections.abc import Callable

from kbroker.server.wire.connection import Connection
from kbroker.server.wire.connection_limits import ConnectionLimits
from kbroker.server.wire.network import Network
from kbroker.server.wire.sendfile import SendableSlice
from kbroker.server.wire.transport import PlainTransport, Sendable
from tests.server.toy_protocol import ToyHandler


class FakeClock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return int(self.seconds * 1000)


class HandWatcher:
    """Remembers the events that a connection waits for."""

    def __init__(self) -> None:
        self.reading: dict[Connection, bool] = {}
        self.writing: dict[Connection, bool] = {}
        self.due: list[Connection] = []
        self.forgotten: list[Connection] = []
        self.read_aheads: list[tuple[SendableSlice, int, int, Callable[[], None]]] = []

    def watch(self, connection: Connection, *, reading: bool, writing: bool) -> None:
        self.reading[connection] = reading
        self.writing[connection] = writing

    def call_again(self, connection: Connection) -> None:
        if connection not in self.due:
            self.due.append(connection)

    def forget(self, connection: Connection) -> None:
        assert connection.fileno() >= 0
        self.forgotten.append(connection)

    def read_ahead(self, file_slice: SendableSlice, position: int, size: int, done: Callable[[], None]) -> None:
        self.read_aheads.append((file_slice, position, size, done))


class CountingTransport(PlainTransport):
    __slots__ = ("sends",)

    def __init__(self, sock: socket.socket, *, portable: bool) -> None:
        super().__init__(sock, portable=portable)
        self.sends: list[int] = []
        self.send = self.counted(self.send)
        self.send_more = self.counted(self.send_more)

    def counted(self, send: Callable[[Sendable], int]) -> Callable[[Sendable], int]:
        def count(data: Sendable) -> int:
            sent = send(data)
            self.sends.append(sent)
            return sent

        return count


class Bench:
    """A network, and as many connections as the test opens."""

    def __init__(self, limits: ConnectionLimits, *, portable: bool) -> None:
        self.clock = FakeClock()
        self.handler = ToyHandler()
        self.network = Network(self.handler, limits, self.clock)
        self.watcher = HandWatcher()
        self.portable = portable
        self.transports: dict[Connection, CountingTransport] = {}
        self.sockets: list[socket.socket] = []

    def connect(self) -> tuple[Connection, socket.socket]:
        ours, theirs = socket.socketpair()
        transport = CountingTransport(ours, portable=self.portable)
        connection = Connection(self.network, self.watcher, transport, peer_host="10.0.0.1", peer_port=5)
        self.transports[connection] = transport
        self.watcher.reading[connection] = True
        self.watcher.writing[connection] = False
        theirs.setblocking(False)
        self.sockets += (ours, theirs)
        return connection, theirs

    def turn(self) -> bool:
        """Calls each connection that waits to read or write once. Returns False if nothing has changed."""
        before = self.progress()
        due, self.watcher.due = self.watcher.due, []
        for connection in due:
            self.in_run(connection.on_turn)
        for connection in list(self.transports):
            if not connection.is_closed and self.watcher.writing[connection]:
                connection.on_writable()
            if not connection.is_closed and self.watcher.reading[connection]:
                self.in_run(connection.on_readable)
        return bool(due) or self.progress() != before

    def in_run(self, method: Callable[[], None]) -> None:
        self.handler.run.begin(0.0)
        try:
            method()
        finally:
            self.handler.run.end()

    def call_in_run(self, connection: Connection, method: Callable[[], None]) -> None:
        """Calls the method as watchers do: a bug closes the connection."""
        self.in_run(lambda: self.network.call(connection, method))

    def progress(self) -> tuple[object, ...]:
        sends = sum(len(transport.sends) for transport in self.transports.values())
        return self.handler.handled, sends, len(self.watcher.forgotten)

    def close(self) -> None:
        for connection in list(self.network.connections):
            connection.close()
        for sock in self.sockets:
            sock.close()
        assert self.network.budget.used == 0, "a closed connection still holds memory"
        assert not self.handler.run.is_open


def receive(sock: socket.socket) -> bytes:
    received = b""
    try:
        while chunk := sock.recv(1 << 20):
            received += chunk
    except BlockingIOError:
        pass
    return received


def is_ended(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
