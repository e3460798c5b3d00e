"""Runs a broker together with its HTTP endpoints /metrics, /healthz and /readyz (kbroker.metrics.listeners).

The endpoints are available before log recovery starts and until the broker has stopped. They run in the broker's event
loop, so /healthz fails if the loop hangs.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import trio

from kbroker.clock import Clock, SystemClock
from kbroker.config.broker import BrokerConfig
from kbroker.config.endpoints import format_address
from kbroker.errors import UserError
from kbroker.server import broker
from kbroker.server.requests.interceptor import Interceptor
from kbroker.server.status import BrokerStatus
from kbroker.server.wire.listener import bind_all

__all__ = ["run_monitored_broker"]

logger = logging.getLogger(__name__)


async def run_monitored_broker(
    config: BrokerConfig,
    *,
    data_dir: str | None = None,
    topics: Sequence[tuple[str, int]] = (),
    on_ready: Callable[[list[tuple[str, int]]], None] = lambda addresses: None,
    stop: trio.Event,
    interceptor: Interceptor | None = None,
    version: str = "",
    clock: Clock | None = None,
) -> None:
    """Runs a broker like `run_broker`. `version` is shown in the log and in metrics."""
    status = BrokerStatus(version)
    clock = SystemClock() if clock is None else clock
    async with _monitor(config, status, clock):
        await broker.run_broker(
            config,
            data_dir=data_dir,
            topics=topics,
            on_ready=on_ready,
            stop=stop,
            interceptor=interceptor,
            status=status,
            clock=clock,
        )


@asynccontextmanager
async def _monitor(config: BrokerConfig, status: BrokerStatus, clock: Clock) -> AsyncIterator[None]:
    listeners = config.kbroker_metrics_listeners
    if not any(listeners):
        yield
        return
    from kbroker.web.http_access import http_access  # only if needed: the imports take time at startup
    from kbroker.web.pages import monitoring_server

    access = http_access(config)
    sockets = _bind(listeners)
    try:
        addresses = [_address(sock) for sock in sockets]
        fields = {"monitor": addresses}
        scheme = "http" if access.tls is None else "https"
        logger.info("Serving metrics on %s", ", ".join(f"{scheme}://{address}" for address in addresses), extra=fields)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(monitoring_server(status, clock, access).run, sockets)
            yield
            nursery.cancel_scope.cancel()
    finally:
        for sock in sockets:
            sock.close()


def _bind(listeners: Iterable[str]) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for text in filter(None, listeners):
            host, colon, port = text.rpartition(":")
            if not (colon and port.isascii() and port.isdigit() and int(port) < 65536):
                raise UserError(f"Invalid value '{text}' for kbroker.metrics.listeners: expected HOST:PORT")
            sockets += bind_all(host.removeprefix("[").removesuffix("]"), int(port))
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return format_address(host, port)
