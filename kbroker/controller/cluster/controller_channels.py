"""The controller's channels to the other brokers: one task for each broker, which sends its control requests in order.

Each request is sent until the broker answers. A channel exists as long as its broker's registration: a broker that
registers again gets a new channel, and the full state.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import trio

from kbroker.client.address import Address
from kbroker.client.failures import ConnectionFailed, NotServed
from kbroker.controller.changes import Change
from kbroker.controller.cluster.control_requests import (
    LEADER_AND_ISR,
    ControlRequest,
    changed_state,
    full_state,
    held_state,
)
from kbroker.controller.image import BrokerRegistration, Image
from kbroker.errors import PeerError
from kbroker.protocol.error_codes import ErrorCode, error_code
from kbroker.protocol.registry import Api

__all__ = ["ConnectToBroker", "ControlConnection", "ControllerChannels", "OnOffline"]

logger = logging.getLogger(__name__)

OnOffline = Callable[[BrokerRegistration, Sequence[tuple[bytes, int]]], None]
"""Takes a broker, and topic ids and partitions."""

_RETRY_SECONDS: Final = 0.1
_DELIVERY_SECONDS: Final = 0.5


class ControlConnection(Protocol):
    """The methods of `kbroker.client.connection.Connection` that the controller uses."""

    @property
    def is_open(self) -> bool: ...

    async def send(self, asked: Api, /, *, at_least: int = ..., timeout_s: float = ..., **members: Any) -> Any: ...

    async def aclose(self) -> None: ...


class ConnectToBroker(Protocol):
    async def __call__(self, address: Address, /, *, client_id: str) -> ControlConnection: ...


class ControllerChannels:
    """Follows the image and sends its changes, between `start` and `stop`: while this broker is the controller."""

    def __init__(
        self,
        broker_id: int,
        listener_name: str,
        connect: ConnectToBroker,
        *,
        on_stale: Callable[[], None],
        on_offline: OnOffline,
    ) -> None:
        """`on_stale`: called when a broker refuses a request because it knows a newer controller.

        `on_offline`: called with a broker, and its replicas that it reports to be in failed data directories.
        """
        self._broker_id = broker_id
        self._listener_name = listener_name
        self._connect = connect
        self._on_stale = on_stale
        self._on_offline = on_offline
        self._nursery: trio.Nursery | None = None
        self._known: Image | None = None
        self._channels: dict[int, _Channel] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None  # an event that is still being processed may call `on_image`

    def start(self, image: Image) -> None:
        """Opens a channel to every broker, and sends it the full state."""
        self.stop()
        self._known = image
        for broker in image.brokers.values():
            self._open(image, broker)

    def stop(self) -> None:
        self._known = None
        for broker_id in list(self._channels):
            self._close(broker_id)

    async def wait_delivered(self) -> None:
        """Waits until every broker has answered the requests so far; at most half a second, as a broker may be down."""
        with trio.move_on_after(_DELIVERY_SECONDS):
            for channel in list(self._channels.values()):
                await channel.wait_delivered()

    def on_image(self, image: Image, changes: Sequence[Change]) -> None:
        before = self._known
        if before is None:
            return
        self._known = image
        for broker_id, channel in list(self._channels.items()):
            broker = image.brokers.get(broker_id)
            if broker is None or broker.epoch != channel.broker.epoch:
                self._close(broker_id)
            else:
                channel.put(changed_state(before, image, changes, broker, self._listener_name))
        for registered in image.brokers.values():
            if registered.id not in self._channels:
                self._open(image, registered)

    def ask_for_offline(self, broker_id: int) -> None:
        """Sends a broker the state of its replicas once more: it reports those in failed data directories."""
        channel, image = self._channels.get(broker_id), self._known
        if channel is not None and image is not None:
            channel.put(held_state(image, channel.broker, self._listener_name))

    def _open(self, image: Image, broker: BrokerRegistration) -> None:
        endpoint = broker.endpoint(self._listener_name)
        if broker.id == self._broker_id or self._nursery is None:
            return
        if endpoint is None:
            logger.error("Broker %d has no listener %s: cannot send control requests", broker.id, self._listener_name)
            return
        address = Address(endpoint.host, endpoint.port)
        channel = _Channel(broker, address, self._connect, self._broker_id, self._on_stale, self._on_offline)
        channel.put(full_state(image, broker, self._listener_name))
        self._channels[broker.id] = channel
        self._nursery.start_soon(channel.run)

    def _close(self, broker_id: int) -> None:
        self._channels.pop(broker_id).scope.cancel()


class _Channel:
    def __init__(
        self,
        broker: BrokerRegistration,
        address: Address,
        connect: ConnectToBroker,
        controller_id: int,
        on_stale: Callable[[], None],
        on_offline: OnOffline,
    ) -> None:
        self.broker = broker
        self.scope = trio.CancelScope()
        self._address = address
        self._connect = connect
        self._client_id = f"kbroker-controller-{controller_id}"
        self._on_stale = on_stale
        self._on_offline = on_offline
        self._requests: deque[ControlRequest] = deque()
        self._wake = trio.Event()
        self._has_logged_failure = False
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
        connection: ControlConnection | None = None
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
                self._delivered = self._put  # no more deliveries: let `wait_delivered` return
                self._progress.set()
                if connection is not None:
                    await connection.aclose()

    async def _send(self, connection: ControlConnection | None, request: ControlRequest) -> ControlConnection | None:
        """Returns the connection, or None if the request must be sent again over a new one."""
        try:
            if connection is None:
                connection = await self._connect(self._address, client_id=self._client_id)
            self._check_response(
                request, await connection.send(request.api, at_least=request.at_least, **request.members)
            )
        except NotServed as failure:
            logger.error("Broker %d does not support a control request: %s", self.broker.id, failure)
        except (ConnectionFailed, PeerError) as failure:
            if not self._has_logged_failure:
                logger.info("Request to broker %d failed; retrying: %s", self.broker.id, failure)
            self._has_logged_failure = True
            if connection is not None:
                await connection.aclose()
            return None
        self._has_logged_failure = False
        return connection

    def _check_response(self, request: ControlRequest, response: Any) -> None:
        code = error_code(response.error_code)
        if code is ErrorCode.STALE_CONTROLLER_EPOCH:
            self._on_stale()
        if code is not ErrorCode.NONE:
            # STALE_BROKER_EPOCH needs no retry: the broker has registered again, and gets the full state.
            logger.info("Broker %d refused %s: %s", self.broker.id, request.api.name, code.name)
        elif request.api is LEADER_AND_ISR:
            offline = [
                (topic.topic_id, partition.partition_index)
                for topic in response.topics
                for partition in topic.partition_errors
                if partition.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            ]
            if offline:
                self._on_offline(self.broker, offline)
