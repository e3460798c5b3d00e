"""One task for all connections of a listener (Linux): it waits on an epoll descriptor and calls those that are ready.

Level-triggered: a connection that has had its turn and has more waiting is simply reported again.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable

import trio

from kbroker.server.connection import Connection
from kbroker.server.listener import Listener
from kbroker.server.network import Network
from kbroker.server.read_ahead import ReadAhead
from kbroker.server.sendfile import SendableSlice

__all__ = ["EpollWatcher"]

# Few, because what is ready and not reported this time comes first next time: the kernel keeps a queue.
_EVENTS_PER_ROUND = 32
# Other tasks that want the loop get it after this; until then looking again costs 1 µs, while a wait in trio costs
# about 20. What trio does not tell beforehand (other sockets) waits for the longer of the two at most.
_STRETCH_SECONDS = 0.002
_LONGEST_STRETCH_SECONDS = 0.01
_PATIENCE_SECONDS = 0.001
# A client that waits for its answer asks again soon: being awake then saves both sides a wake-up, which costs more than
# looking (1.7 times the requests with one in flight, and less CPU for each). How soon is learnt, within these bounds:
# where the next request takes longer, looking for it would be in vain.
_SHORTEST_SPIN_SECONDS = 0.00002
_LONGEST_SPIN_SECONDS = 0.0003
_ACCEPT_PAUSE = 0.1


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
        self._listener = listener
        self._nursery = nursery
        self._forgotten = forgotten
        self._is_alone = is_alone  # no other listener waits in this loop
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._accepting: dict[int, socket.socket] = {}
        self._due: dict[Connection, None] = {}
        self._is_awake = False
        self._spin_seconds = _SHORTEST_SPIN_SECONDS
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # wakes our task for others in the same loop
        self._epoll.register(self._bell, select.EPOLLIN)
        self._read_ahead = ReadAhead(nursery)

    # What connections call

    def watch(self, connection: Connection, *, reading: bool, writing: bool) -> None:
        mask = (select.EPOLLIN if reading else 0) | (select.EPOLLOUT if writing else 0)
        self._epoll.modify(connection.fileno(), mask)

    def call_again(self, connection: Connection) -> None:
        self._due[connection] = None
        if not self._is_awake:
            os.eventfd_write(self._bell, 1)

    def forget(self, connection: Connection) -> None:
        descriptor = connection.fileno()
        del self._connections[descriptor]
        self._epoll.unregister(descriptor)
        self._forgotten(connection)

    def read_ahead(self, file_slice: SendableSlice, position: int, size: int, done: Callable[[], None]) -> None:
        self._read_ahead.start(file_slice, position, size, done)

    # What the server calls

    async def run(self) -> None:
        for sock in self._listener.sockets:
            self._start_accepting(sock)
        monotonic = self._network.clock.monotonic
        while True:
            if self._due:
                await trio.lowlevel.checkpoint()
            else:
                self._is_awake = False
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                self._is_awake = True
            began = now = monotonic()
            end = now + _STRETCH_SECONDS
            while self._call_ready(self._epoll.poll(0, _EVENTS_PER_ROUND)) or self._call_next():
                now = monotonic()
                if now >= end:
                    if now - began >= _LONGEST_STRETCH_SECONDS or not self._is_only_task():
                        break
                    end = now + _STRETCH_SECONDS

    def stop_accepting(self) -> None:
        for descriptor in () if self._epoll.closed else self._accepting:
            self._epoll.unregister(descriptor)
        self._accepting.clear()

    def close(self) -> None:
        self._epoll.close()
        os.close(self._bell)

    # Inside

    def _is_only_task(self) -> bool:
        """Nobody else in this loop has anything to do in the next moment."""
        if not self._is_alone or self._network.is_loop_shared:
            return False
        others = trio.lowlevel.current_statistics()
        return not (
            others.tasks_runnable
            or others.run_sync_soon_queue_size
            or others.seconds_to_next_deadline < _PATIENCE_SECONDS
        )

    def _call_next(self) -> bool:
        """Wait a moment for whoever is next, here: a turn through trio costs more, and nobody else wants one."""
        if self._due or not self._is_only_task():
            return False
        poll = self._epoll.poll
        monotonic = self._network.clock.monotonic
        began = now = monotonic()
        end = began + self._spin_seconds
        while now < end:
            if events := poll(0, _EVENTS_PER_ROUND):
                return self._call_ready(events)
            now = monotonic()
        events = poll(_PATIENCE_SECONDS, _EVENTS_PER_ROUND)
        waited = monotonic() - began
        # Half as much again, for the next one may take a little longer.
        self._spin_seconds = 1.5 * waited if 1.5 * waited <= _LONGEST_SPIN_SECONDS else _SHORTEST_SPIN_SECONDS
        return self._call_ready(events)

    def _call_ready(self, events: list[tuple[int, int]]) -> bool:
        """Call every connection that is ready, or had something left to do, once; False if none was."""
        network = self._network
        if self._due:
            due, self._due = self._due, {}
            for due_connection in due:
                network.call(due_connection, due_connection.on_turn)
        if events:
            network.begin_round()
            try:
                self._call_each(events)
            finally:
                network.end_round()
        return bool(events) or bool(self._due)

    def _call_each(self, events: list[tuple[int, int]]) -> None:
        connections = self._connections
        call = self._network.call
        for descriptor, event in events:
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
        if descriptor == self._bell:
            os.eventfd_read(self._bell)
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
