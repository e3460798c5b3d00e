"""Watcher with one task for all connections of a listener (Linux): waits on epoll and calls ready connections.

Level-triggered: a connection that has more to read after its turn is reported again. One round of the poll is one run.
A round that takes long ends early, and the next round begins with the connections that it left out.
"""

from __future__ import annotations

import os
import resource
import select
import socket
from collections.abc import Callable
from typing import Final

import trio

from kbroker.server.wire.connection import Connection
from kbroker.server.wire.listener import Listener
from kbroker.server.wire.network import Network
from kbroker.server.wire.read_ahead import ReadAhead
from kbroker.server.wire.sendfile import SendableSlice
from kbroker.server.wire.spinning import Spinning

__all__ = ["EpollWatcher"]

# Few: the kernel keeps a queue, and reports first the sockets that the last round left out.
_EVENTS_PER_ROUND: Final = 32
# A round ends after so long: responses leave at its end. Connections that an earlier round has left with frames get
# half of the time, so that they cannot keep the others waiting.
ROUND_SECONDS: Final = 0.005
_EVENTS_PER_CLOCK_READ: Final = 4
# The watcher polls again without a turn through trio: that costs 1 µs instead of 20. Tasks that trio knows to be ready
# get the loop after _STRETCH_SECONDS. Sockets of other tasks are invisible until trio polls: they wait for at most
# _LONGEST_STRETCH_SECONDS.
_STRETCH_SECONDS: Final = 0.002
_LONGEST_STRETCH_SECONDS: Final = 0.01
_IDLE_WAIT_SECONDS: Final = 0.001
_ACCEPT_PAUSE: Final = 0.1


class EpollWatcher:
    def __init__(
        self,
        network: Network,
        listener: Listener,
        nursery: trio.Nursery,
        forgotten: Callable[[Connection], None],
        *,
        is_alone: bool,
    ) -> None:
        self._network = network
        self._run = network.run
        self._listener = listener
        self._tls_state = listener.tls_state
        self._nursery = nursery
        self._forgotten = forgotten
        self._is_alone = is_alone  # the broker has no other listener
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._accepting: dict[int, socket.socket] = {}
        self._sockets: dict[int, Callable[[], None]] = {}  # of other tasks
        self._due: dict[Connection, None] = {}
        self._left_events: list[tuple[int, int]] = []  # of a round that ended early
        self._is_awake = False
        self._now = 0.0  # read before a poll, or at the end of a run
        self._spinning = Spinning(_involuntary_switches)
        # Wakes this task when another task calls `call_again`.
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wakeup, select.EPOLLIN)
        self._read_ahead = ReadAhead(nursery)

    # Called by connections

    def watch(self, connection: Connection, *, reading: bool, writing: bool) -> None:
        mask = (select.EPOLLIN if reading else 0) | (select.EPOLLOUT if writing else 0)
        self._epoll.modify(connection.fileno(), mask)

    def call_again(self, connection: Connection) -> None:
        self._due[connection] = None
        if not self._is_awake:
            os.eventfd_write(self._wakeup, 1)

    def forget(self, connection: Connection) -> None:
        descriptor = connection.fileno()
        del self._connections[descriptor]
        self._epoll.unregister(descriptor)
        self._forgotten(connection)

    def read_ahead(self, file_slice: SendableSlice, position: int, size: int, done: Callable[[], None]) -> None:
        self._read_ahead.start(file_slice, position, size, done)

    # Called by fetchers of replicas

    def add(self, descriptor: int, on_readable: Callable[[], None]) -> None:
        """Calls `on_readable`, which must not raise, in a run while this socket has bytes to read, until `remove`."""
        if not self._epoll.closed:  # otherwise the broker stops, and cancels those who wait
            self._sockets[descriptor] = on_readable
            self._epoll.register(descriptor, select.EPOLLIN)

    def remove(self, descriptor: int) -> None:
        if self._sockets.pop(descriptor, None) is not None and not self._epoll.closed:
            self._epoll.unregister(descriptor)

    # Called by the server

    async def run(self) -> None:
        for sock in self._listener.sockets:
            self._start_accepting(sock)
        monotonic = self._network.clock.monotonic
        while True:
            if self._due or self._left_events:
                await trio.lowlevel.checkpoint()
            else:
                self._is_awake = False
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                self._is_awake = True
            self._now = began = monotonic()
            end = began + _STRETCH_SECONDS
            while self._call_ready(self._next_events()) or self._call_next():
                now = self._now
                if now >= end:
                    is_long = now - began >= _LONGEST_STRETCH_SECONDS or self._network.has_peers
                    if is_long or not self._is_only_task():
                        break
                    end = now + _STRETCH_SECONDS

    def stop_accepting(self) -> None:
        for descriptor in () if self._epoll.closed else self._accepting:
            self._epoll.unregister(descriptor)
        self._accepting.clear()

    def close(self) -> None:
        self._epoll.close()
        os.close(self._wakeup)

    # Inside

    def _is_only_task(self) -> bool:
        """Whether no other task of this loop is ready, or due within _IDLE_WAIT_SECONDS."""
        if not self._is_alone or self._network.is_loop_shared:
            return False
        others = trio.lowlevel.current_statistics()
        return not (
            others.tasks_runnable
            or others.run_sync_soon_queue_size
            or others.seconds_to_next_deadline < _IDLE_WAIT_SECONDS
        )

    def _call_next(self) -> bool:
        """Waits for the next event here instead of in trio, if no other task needs the loop. False if none arrived."""
        if self._due or self._left_events or not self._is_only_task():
            return False
        poll = self._epoll.poll
        monotonic = self._network.clock.monotonic
        spinning = self._spinning
        began = now = monotonic()
        end = began + (0.0 if self._network.has_peers else spinning.seconds(now))
        while now < end:
            if events := poll(0, _EVENTS_PER_ROUND):
                spinning.on_hit()
                self._now = now
                return self._call_ready(events)
            now = monotonic()
        events = poll(_IDLE_WAIT_SECONDS, _EVENTS_PER_ROUND)
        self._now = now = monotonic()
        spinning.on_miss(now - began)
        return self._call_ready(events)

    def _next_events(self) -> list[tuple[int, int]]:
        """Returns the events that the last round left out, or polls: the kernel would report them in any order."""
        if self._left_events:
            events, self._left_events = self._left_events, []
            return events
        return self._epoll.poll(0, _EVENTS_PER_ROUND)

    def _call_ready(self, events: list[tuple[int, int]]) -> bool:
        """Calls each connection that is ready or due once, in one run. Returns False if there was none."""
        if not events and not self._due:
            return False
        run = self._run
        began = self._now
        run.begin(began)
        if self._tls_state is not None:
            self._tls_state.begin_round()
        try:
            if self._due:
                self._call_due(began + ROUND_SECONDS / 2)
            self._call_each(events, began + ROUND_SECONDS)
        finally:
            self._now = run.end()
        return bool(events) or bool(self._due)

    def _call_due(self, end: float) -> None:
        due, self._due = self._due, {}
        call = self._network.call
        monotonic = self._network.clock.monotonic
        for number, connection in enumerate(due, 1):
            call(connection, connection.on_turn)
            if monotonic() >= end:
                self._due = dict.fromkeys(list(due)[number:]) | self._due
                return

    def _call_each(self, events: list[tuple[int, int]], end: float) -> None:
        """Calls the connections of the events in order. At `end`, it keeps the other events for the next round."""
        connections = self._connections
        call = self._network.call
        monotonic = self._network.clock.monotonic
        for number, (descriptor, event) in enumerate(events):
            if number and number % _EVENTS_PER_CLOCK_READ == 0 and monotonic() >= end:
                self._left_events = events[number:]
                return
            connection = connections.get(descriptor)
            if connection is None:
                self._on_other_event(descriptor)
            elif event == select.EPOLLIN:
                call(connection, connection.on_readable)
            elif event & (select.EPOLLERR | select.EPOLLHUP):
                call(connection, connection.on_hangup)
            else:
                if event & select.EPOLLOUT:
                    call(connection, connection.on_writable)
                if event & select.EPOLLIN:
                    call(connection, connection.on_readable)

    def _on_other_event(self, descriptor: int) -> None:
        on_readable = self._sockets.get(descriptor)
        if on_readable is not None:
            on_readable()
            return
        if descriptor == self._wakeup:
            os.eventfd_read(self._wakeup)
            return
        sock = self._accepting.get(descriptor)
        if sock is not None and not self._listener.on_acceptable(sock, self, self._opened):
            del self._accepting[descriptor]
            self._epoll.unregister(descriptor)
            self._nursery.start_soon(self._accept_later, sock)

    async def _accept_later(self, sock: socket.socket) -> None:
        await trio.sleep(_ACCEPT_PAUSE)
        if sock.fileno() >= 0:
            self._start_accepting(sock)

    def _start_accepting(self, sock: socket.socket) -> None:
        self._accepting[sock.fileno()] = sock
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _opened(self, connection: Connection) -> None:
        descriptor = connection.fileno()
        self._connections[descriptor] = connection
        self._epoll.register(descriptor, select.EPOLLIN)


def _involuntary_switches() -> int:
    """Returns how often the kernel has given the core of this thread to another one that wanted it."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
