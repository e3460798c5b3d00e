"""Channels to other brokers for small items: one task and one connection for each broker.

While a request waits for its response, further items of the broker queue up, and leave together in the next request.
Never retries: an item fails if its broker cannot be reached or leaves the image, and its owner decides where it goes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

import trio

from kbroker.client.address import Address
from kbroker.client.connection import BrokerConnection, connect
from kbroker.client.failures import ConnectionFailed, NotServed
from kbroker.controller.changes import Change
from kbroker.controller.image import BrokerRegistration, Image
from kbroker.errors import PeerError

__all__ = ["BrokerChannels", "Connect", "Exchange"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

Exchange = Callable[[BrokerConnection, list[T]], Awaitable[list[T]]]
"""Sends a request with these items and handles its response. Returns the items that need another request."""


class Connect(Protocol):
    async def __call__(self, address: Address, /, *, client_id: str) -> BrokerConnection: ...


class BrokerChannels(Generic[T]):
    def __init__(
        self,
        exchange: Exchange[T],
        fail: Callable[[T], None],
        *,
        broker_id: int,
        listener_name: str,
        connect: Connect = connect,
    ) -> None:
        """`fail` is called with each item whose request could not be sent, or got no response."""
        self._exchange = exchange
        self._fail = fail
        self._client_id = f"kbroker-{broker_id}"
        self._listener_name = listener_name
        self._connect = connect
        self._image = Image()
        self._channels: dict[int, _Channel[T]] = {}
        self._nursery: trio.Nursery | None = None

    def on_image(self, image: Image, changes: Sequence[Change] = ()) -> None:
        """Follows the image: the channel of a broker that has left, or has registered again, ends."""
        self._image = image
        for broker_id, channel in list(self._channels.items()):
            if image.brokers.get(broker_id) != channel.broker:
                del self._channels[broker_id]
                channel.scope.cancel()

    def put(self, broker_id: int, item: T) -> None:
        """Queues an item for a broker. Fails it at once if the broker is not known."""
        channel = self._channels.get(broker_id)
        if channel is None:
            broker = self._image.brokers.get(broker_id)
            endpoint = None if broker is None else broker.endpoint(self._listener_name)
            if broker is None or endpoint is None or self._nursery is None:
                self._fail(item)
                return
            channel = _Channel(broker, self._exchange, self._fail)
            self._channels[broker_id] = channel
            address = Address(endpoint.host, endpoint.port)
            self._nursery.start_soon(channel.run, lambda: self._connect(address, client_id=self._client_id))
        channel.put(item)

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as self._nursery:
                await trio.sleep_forever()
        finally:
            self._nursery = None
            self._channels.clear()


class _Channel(Generic[T]):
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
