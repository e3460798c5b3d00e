"""A broker and, beside it, the pages that monitors ask for: /metrics, /healthz, /readyz (kbroker.metrics.listeners).

They answer from before the logs are recovered until the broker has stopped, and in the broker's own loop: /healthz says
that it turns.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import trio

from kbroker.clock import SystemClock
from kbroker.config import BrokerConfig
from kbroker.errors import UserError
from kbroker.server import broker
from kbroker.server.interceptor import Interceptor
from kbroker.server.listener import bind_all
from kbroker.server.vitals import Vitals

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
) -> None:
    """As `run_broker`. `version` is what log and metrics tell of the release."""
    vitals = Vitals(version)
    async with _monitor(config.kbroker_metrics_listeners, vitals):
        await broker.run_broker(
            config,
            data_dir=data_dir,
            topics=topics,
            on_ready=on_ready,
            stop=stop,
            interceptor=interceptor,
            vitals=vitals,
        )


@asynccontextmanager
async def _monitor(listeners: Sequence[str], vitals: Vitals) -> AsyncIterator[None]:
    if not any(listeners):
        yield
        return
    from kbroker.web.pages import pages_of  # most brokers have no monitor, and need not wait for its import

    sockets = _bind(listeners)
    try:
        addresses = [_address(each) for each in sockets]
        fields = {"monitor": addresses}
        logger.info("metrics and health on %s", ", ".join(f"http://{each}" for each in addresses), extra=fields)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pages_of(vitals, SystemClock()).run, sockets)
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
                raise UserError(f"kbroker.metrics.listeners has '{text}', which is not HOST:PORT")
            sockets += bind_all(host.removeprefix("[").removesuffix("]"), int(port))
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
