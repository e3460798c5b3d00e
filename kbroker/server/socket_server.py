"""All listeners of a broker: starts them, sweeps their connections, ends them: accepting first, then requests."""

from __future__ import annotations

import os
import select

import trio

from kbroker.server.connection import Connection
from kbroker.server.epoll_watcher import EpollWatcher
from kbroker.server.listener import Listener, bind_all
from kbroker.server.network import Network
from kbroker.server.task_watcher import TaskWatcher

__all__ = ["SocketServer"]

_SWEEP_SECONDS = 1.0


class SocketServer:
    """`portable` forces what systems without epoll and Linux's sendfile get; so does KBROKER_PORTABLE=1."""

    def __init__(self, network: Network, *, portable: bool | None = None) -> None:
        self.network = network
        if portable is None:
            portable = os.environ.get("KBROKER_PORTABLE", "") not in ("", "0")
        self.is_portable = portable or not hasattr(select, "epoll")
        self.listeners: list[Listener] = []
        self._watchers: list[EpollWatcher | TaskWatcher] = []
        self._scope = trio.CancelScope()
        self._is_quiet = trio.Event()

    def listen(self, name: str, host: str, port: int) -> Listener:
        """Bind now, so that a port in use shows at once; connections wait until `run` accepts them."""
        listener = Listener(self.network, name, bind_all(host, port), portable=self.is_portable)
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

    def stop_accepting(self) -> None:
        for watcher in self._watchers:
            watcher.stop_accepting()
        for listener in self.listeners:
            listener.close()

    async def stop(self, grace_seconds: float) -> None:
        """Accept nothing more, let requests that were read get their answers, and close; at last after the grace."""
        self.stop_accepting()
        for connection in list(self.network.connections):
            connection.finish()
        with trio.move_on_after(grace_seconds):
            while self.network.connections:
                self._is_quiet = trio.Event()
                await self._is_quiet.wait()
        self._scope.cancel()

    def _start(self, listener: Listener, nursery: trio.Nursery) -> None:
        watcher: EpollWatcher | TaskWatcher
        if self.is_portable:
            watcher = TaskWatcher(self.network, listener, nursery, self._forgotten)
        else:
            is_alone = len(self.listeners) == 1
            watcher = EpollWatcher(self.network, listener, nursery, self._forgotten, is_alone=is_alone)
        self._watchers.append(watcher)
        nursery.start_soon(watcher.run)

    def _forgotten(self, connection: Connection) -> None:
        self.network.quotas.leave(connection.peer_host)
        if not self.network.connections:
            self._is_quiet.set()

    async def _sweep(self) -> None:
        max_idle = self.network.limits.max_idle_ms / 1000
        interval = min(_SWEEP_SECONDS, max_idle / 2) if max_idle > 0 else _SWEEP_SECONDS
        while True:
            await trio.sleep(interval)
            self.network.sweep()

    def _close_all(self) -> None:
        self.network.close_refused()
        for connection in list(self.network.connections):
            connection.close()
        for listener in self.listeners:
            listener.close()
        for watcher in self._watchers:
            watcher.close()
