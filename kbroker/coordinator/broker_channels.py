"""Channels to other brokers for small items: one task and one connection for each broker.

While a request waits for its response, further items of the broker queue up, and leave together in the next request.
Never retries: an item fails if its broker cannot be reached or leaves the image, and its owner decides where it goes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import trio

from kbroker.controller.changes import Change
from kbroker.controller.image import Image

if TYPE_CHECKING:
    from kbroker.client.address import Address
    from kbroker.client.connection import BrokerConnection
    from kbroker.coordinator.broker_channel import BrokerChannel

__all__ = ["BrokerChannels", "Connect", "Exchange"]

T = TypeVar("T")

Exchange = Callable[["BrokerConnection", list[T]], Awaitable[list[T]]]
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
        connect: Connect | None = None,
    ) -> None:
        """`fail` is called with each item whose request could not be sent, or got no response.

        `connect`: None for connections over TCP. A single node never loads the client.
        """
        self._exchange = exchange
        self._fail = fail
        self._client_id = f"kbroker-{broker_id}"
        self._listener_name = listener_name
        self._connect = connect
        self._image = Image()
        self._channels: dict[int, BrokerChannel[T]] = {}
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
            from kbroker.client.address import Address
            from kbroker.client.connection import connect as connect_tcp
            from kbroker.coordinator.broker_channel import BrokerChannel

            channel = BrokerChannel(broker, self._exchange, self._fail)
            self._channels[broker_id] = channel
            address = Address(endpoint.host, endpoint.port)
            connect = connect_tcp if self._connect is None else self._connect
            self._nursery.start_soon(channel.run, lambda: connect(address, client_id=self._client_id))
        channel.put(item)

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as self._nursery:
                await trio.sleep_forever()
        finally:
            self._nursery = None
            self._channels.clear()
