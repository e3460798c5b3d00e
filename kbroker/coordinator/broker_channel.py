"""Channel to one broker, used by `BrokerChannels`: a task, a connection, and the items of the next request."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, TypeVar

import trio

from kbroker.client.connection import BrokerConnection
from kbroker.client.failures import ConnectionFailed, NotServed
from kbroker.controller.image import BrokerRegistration
from kbroker.errors import PeerError

if TYPE_CHECKING:
    from kbroker.coordinator.broker_channels import Exchange

__all__ = ["BrokerChannel"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class BrokerChannel(Generic[T]):
    def __init__(self, broker: BrokerRegistration, exchange: Exchange[T], fail: Callable[[T], None]) -> None:
        self.broker = broker
        self.scope = trio.CancelScope()
        self._exchange = exchange
        self._fail = fail
        self._items: list[T] = []
        self._wake = trio.Event()
        self._connection: BrokerConnection | None = None
        self._has_logged_failure = False

    def put(self, item: T) -> None:
        self._items.append(item)
        self._wake.set()

    async def run(self, connect: Callable[[], Awaitable[BrokerConnection]]) -> None:
        try:
            with self.scope:
                while True:
                    await self._wake.wait()
                    while self._items:
                        await self._send(connect)
                    self._wake = trio.Event()
        finally:
            items, self._items = self._items, []
            for item in items:
                self._fail(item)
            await self._disconnect()

    async def _send(self, connect: Callable[[], Awaitable[BrokerConnection]]) -> None:
        items, self._items = self._items, []
        try:
            if self._connection is None:
                self._connection = await connect()
            left = await self._exchange(self._connection, items)
        except (ConnectionFailed, PeerError, NotServed) as failure:
            if not self._has_logged_failure:
                logger.info("Request to broker %d failed: %s", self.broker.id, failure)
            self._has_logged_failure = True
            await self._disconnect()
            for item in items:
                self._fail(item)
        except BaseException:
            self._items = items + self._items  # `run` fails them
            raise
        else:
            self._has_logged_failure = False
            self._items = left + self._items

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()
