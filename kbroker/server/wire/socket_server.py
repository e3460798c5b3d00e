"""Runs all listeners of a broker, sweeps their connections, and stops them: first accepting, then open requests."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from kbroker.server.wire.connection import Connection
from kbroker.server.wire.epoll_watcher import EpollWatcher
from kbroker.server.wire.listener import Listener, bind_all
from kbroker.server.wire.network import Network
from kbroker.server.wire.task_watcher import TaskWatcher

if TYPE_CHECKING:
    from kbroker.server.wire.tls_transport import ListenerTls

__all__ = ["SocketServer"]

_SWEEP_SECONDS = 1.0


class SocketServer:
    """`portable` (or KBROKER_PORTABLE=1) forces the implementation for systems without epoll and Linux's sendfile."""

    def __init__(self, network: Network, *, portable: bool | None = None) -> None:
        self.network = network
        if portable is None:
            portable = os.environ.get("KBROKER_PORTABLE", "") not in ("", "0")
        self.is_portable = portable or not hasattr(select, "epoll")
        self.listeners: list[Listener] = []
        self._watchers: list[EpollWatcher | TaskWatcher] = []
        self._scope = trio.CancelScope()
        self._is_empty = trio.Event()

    def listen(
        self,
        name: str,
        *,
        host: str,
        port: int,
        tls: ListenerTls | None = None,
        begin_login: Callable[[Connection], None] | None = None,
    ) -> Listener:
        """Binds now, so that a port in use fails early. Connections wait in the backlog until `run` accepts them.

        `tls`, `begin_login`: as in `Listener`.
        """
        sockets = bind_all(host, port)
        listener = Listener(self.network, name, sockets, portable=self.is_portable, tls=tls, begin_login=begin_login)
        self.listeners.append(listener)
        return listener

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for listener in self.listeners:
                        self._start(listener, nursery)
                    nursery.start_soon(self._sweep)
                    task_status.started()
        finally:
            self._close_all()

    @property
    def socket_watch(self) -> EpollWatcher | None:
        """Returns the watcher that other tasks may give their sockets; None before `run`, and without epoll."""
        return next((watcher for watcher in self._watchers if isinstance(watcher, EpollWatcher)), None)

    def stop_accepting(self) -> None:
        for watcher in self._watchers:
            watcher.stop_accepting()
        for listener in self.listeners:
            listener.close()

    async def stop(self, grace_seconds: float) -> None:
        """Stops accepting, answers the requests that were read, and closes; after `grace_seconds` at the latest."""
        self.stop_accepting()
        for connection in list(self.network.connections):
            connection.finish()
        with trio.move_on_after(grace_seconds):
            while self.network.connections:
                self._is_empty = trio.Event()
                await self._is_empty.wait()
        self._scope.cancel()

    def _start(self, listener: Listener, nursery: trio.Nursery) -> None:
        watcher: EpollWatcher | TaskWatcher
        if listener.tls_state is not None:
            from kbroker.server.wire.handshake_threads import HandshakeThreads  # loads OpenSSL

            listener.tls_state.threads = HandshakeThreads(nursery)
        if self.is_portable:
            watcher = TaskWatcher(self.network, listener, nursery, self._on_closed)
        else:
            is_alone = len(self.listeners) == 1
            watcher = EpollWatcher(self.network, listener, nursery, self._on_closed, is_alone=is_alone)
        self._watchers.append(watcher)
        nursery.start_soon(watcher.run)

    def _on_closed(self, connection: Connection) -> None:
        self.network.quotas.leave(connection.peer_host)
        if not self.network.connections:
            self._is_empty.set()

    async def _sweep(self) -> None:
        max_idle = self.network.limits.max_idle_ms / 1000
        interval = min(_SWEEP_SECONDS, max_idle / 2) if max_idle > 0 else _SWEEP_SECONDS
        while True:
            due = trio.current_time() + interval
            await trio.sleep_until(due)
            self.network.load.lag.observe(1000 * (trio.current_time() - due))
            self.network.sweep()

    def _close_all(self) -> None:
        self.network.delayed_close.close_all()
        for connection in list(self.network.connections):
            connection.close()
        for listener in self.listeners:
            listener.close()
        for watcher in self._watchers:
            watcher.close()
