"""The controller's channels to the other brokers: one task for each, requests in order, each sent until it is answered.

A channel lives as long as its broker's registration; a broker that comes back gets a new one, and the full state.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import trio

from kbroker.client.address import Address
from kbroker.client.failures import ConnectionFailed, NotServed, error_code
from kbroker.controller.changes import Change
from kbroker.controller.control_requests import ControlRequest, changed_state, full_state
from kbroker.controller.image import Broker, Image
from kbroker.errors import PeerError
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.registry import Api

__all__ = ["Channels", "Connect", "Peer"]

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.1
_DELIVERY_SECONDS: Final = 0.5


class Peer(Protocol):
    """What is used of `kbroker.client.connection.Connection`."""

    @property
    def is_open(self) -> bool: ...

    async def ask(self, asked: Api, /, *, at_least: int = ..., timeout_s: float = ..., **members: Any) -> Any: ...

    async def aclose(self) -> None: ...


class Connect(Protocol):
    async def __call__(self, address: Address, /, *, client_id: str) -> Peer: ...


class Channels:
    """Follows the image; does nothing but between `start` and `stop`, while this broker is the controller."""

    def __init__(self, broker_id: int, listener_name: str, connect: Connect, *, on_stale: Callable[[], None]) -> None:
        """`on_stale`: a broker knows of a newer controller."""
        self._broker_id = broker_id
        self._listener_name = listener_name
        self._connect = connect
        self._on_stale = on_stale
        self._nursery: trio.Nursery | None = None
        self._known: Image | None = None
        self._channels: dict[int, _Channel] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None  # an event that is being looked at may still want to tell somebody

    def start(self, image: Image) -> None:
        """This broker has become the controller: everybody gets everything."""
        self.stop()
        self._known = image
        for broker in image.brokers.values():
            self._open(image, broker)

    def stop(self) -> None:
        self._known = None
        for broker_id in list(self._channels):
            self._close(broker_id)

    async def wait_delivered(self) -> None:
        """Until everybody has what was sent so far; not for long, since one of them may be dying."""
        with trio.move_on_after(_DELIVERY_SECONDS):
            for channel in list(self._channels.values()):
                await channel.wait_delivered()

    def on_image(self, image: Image, changes: Sequence[Change]) -> None:
        before = self._known
        if before is None:
            return
        self._known = image
        for broker_id, channel in list(self._channels.items()):
            now = image.brokers.get(broker_id)
            if now is None or now.epoch != channel.broker.epoch:
                self._close(broker_id)
            else:
                channel.put(changed_state(before, image, changes, now, self._listener_name))
        for broker in image.brokers.values():
            if broker.id not in self._channels:
                self._open(image, broker)

    def _open(self, image: Image, broker: Broker) -> None:
        endpoint = broker.endpoint(self._listener_name)
        if broker.id == self._broker_id or self._nursery is None:
            return
        if endpoint is None:
            logger.error("broker %d has no listener %s: it is not told anything", broker.id, self._listener_name)
            return
        address = Address(endpoint.host, endpoint.port)
        channel = _Channel(broker, address, self._connect, self._broker_id, self._on_stale)
        channel.put(full_state(image, broker, self._listener_name))
        self._channels[broker.id] = channel
        self._nursery.start_soon(channel.run)

    def _close(self, broker_id: int) -> None:
        self._channels.pop(broker_id).scope.cancel()


class _Channel:
    def __init__(
        self, broker: Broker, address: Address, connect: Connect, controller_id: int, on_stale: Callable[[], None]
    ) -> None:
        self.broker = broker
        self.scope = trio.CancelScope()
        self._address = address
        self._connect = connect
        self._client_id = f"kbroker-controller-{controller_id}"
        self._on_stale = on_stale
        self._requests: deque[ControlRequest] = deque()
        self._wake = trio.Event()
        self._is_silent = False
        self._put = self._delivered = 0
        self._progress = trio.Event()

    async def wait_delivered(self) -> None:
        target = self._put
        while self._delivered < target:
            await self._progress.wait()

    def put(self, requests: Sequence[ControlRequest]) -> None:
        self._requests.extend(requests)
        self._put += len(requests)
        if self._requests:
            self._wake.set()

    async def run(self) -> None:
        connection: Peer | None = None
        with self.scope:
            try:
                while True:
                    await self._wake.wait()
                    while self._requests:
                        connection = await self._send(connection, self._requests[0])
                        if connection is None:
                            await trio.sleep(_RETRY_SECONDS)
                        else:
                            self._requests.popleft()
                            self._delivered += 1
                            self._progress.set()
                            self._progress = trio.Event()
                    self._wake = trio.Event()
            finally:
                self._delivered = self._put  # nobody is left who could be told
                self._progress.set()
                if connection is not None:
                    await connection.aclose()

    async def _send(self, connection: Peer | None, request: ControlRequest) -> Peer | None:
        """None: it must be sent again, over another connection."""
        try:
            if connection is None:
                connection = await self._connect(self._address, client_id=self._client_id)
            self._look_at(request, await connection.ask(request.api, at_least=request.at_least, **request.members))
        except NotServed as failure:
            logger.error("broker %d cannot be told: %s", self.broker.id, failure)
        except (ConnectionFailed, PeerError) as failure:
            if not self._is_silent:
                logger.info("broker %d is told again until it answers: %s", self.broker.id, failure)
            self._is_silent = True
            if connection is not None:
                await connection.aclose()
            return None
        self._is_silent = False
        return connection

    def _look_at(self, request: ControlRequest, response: Any) -> None:
        code = error_code(response.error_code)
        if code is ErrorCode.STALE_CONTROLLER_EPOCH:
            self._on_stale()
        if code is not ErrorCode.NONE:
            # A stale broker epoch: it has registered anew, and the full state is on its way.
            logger.info("broker %d refuses %s: %s", self.broker.id, request.api.name, code.name)
