"""Channels to other brokers: what leaves together, and what fails with its broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.client.address import Address
from kbroker.client.connection import BrokerConnection
from kbroker.client.failures import ConnectionFailed, CouldNotConnect
from kbroker.config.endpoints import Endpoint
from kbroker.controller.image import BrokerRegistration, Image
from kbroker.coordinator.broker_channels import BrokerChannels

LISTENER = "PLAINTEXT"


def image(*registrations: tuple[int, int]) -> Image:
    """`registrations`: broker ids and epochs."""
    endpoint = Endpoint(LISTENER, "127.0.0.1", 9092)
    return Image(
        brokers={broker_id: BrokerRegistration(broker_id, epoch, (endpoint,)) for broker_id, epoch in registrations}
    )


class Connection:
    def __init__(self) -> None:
        self.is_closed = False

    async def aclose(self) -> None:
        self.is_closed = True


class Network:
    """Connections whose requests the test answers one by one."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.is_down = False
        self.requests: list[list[str]] = []
        self.failed: list[str] = []
        self.left: list[str] = []
        self.breaks = False
        self.answer = trio.Event()
        self.channels: BrokerChannels[str] = BrokerChannels(
            self.exchange, self.failed.append, broker_id=1, listener_name=LISTENER, connect=self.connect
        )

    async def connect(self, address: Address, /, *, client_id: str) -> BrokerConnection:
        await trio.lowlevel.checkpoint()
        if self.is_down:
            raise CouldNotConnect(address)
        connection = Connection()
        self.connections.append(connection)
        return cast(BrokerConnection, connection)

    async def exchange(self, connection: Any, items: list[str]) -> list[str]:
        self.requests.append(items)
        await self.answer.wait()
        if self.breaks:
            raise ConnectionFailed("there", "closed")
        left, self.left = self.left, []
        return left

    async def respond(self) -> None:
        self.answer.set()
        self.answer = trio.Event()
        await wait_all_tasks_blocked()


@pytest.fixture
async def network(nursery: trio.Nursery) -> AsyncIterator[Network]:
    network = Network()
    nursery.start_soon(network.channels.run)
    await wait_all_tasks_blocked()
    network.channels.on_image(image((2, 1)))
    yield network
    nursery.cancel_scope.cancel()


async def test_items_that_queue_up_leave_together(network: Network) -> None:
    network.channels.put(2, "a")
    await wait_all_tasks_blocked()
    network.channels.put(2, "b")
    network.channels.put(2, "c")
    await wait_all_tasks_blocked()
    assert network.requests == [["a"]]
    await network.respond()
    assert network.requests == [["a"], ["b", "c"]]
    assert len(network.connections) == 1


async def test_items_that_need_another_request_are_sent_next(network: Network) -> None:
    network.channels.put(2, "a")
    await wait_all_tasks_blocked()
    network.left = ["a"]
    network.channels.put(2, "b")
    await network.respond()
    assert network.requests == [["a"], ["a", "b"]]


async def test_items_fail_with_their_connection_and_the_next_gets_a_new_one(network: Network) -> None:
    network.channels.put(2, "a")
    await wait_all_tasks_blocked()
    network.breaks = True
    await network.respond()
    assert network.failed == ["a"]
    assert network.connections[0].is_closed
    network.channels.put(2, "b")
    await wait_all_tasks_blocked()
    assert len(network.connections) == 2


async def test_items_fail_if_there_is_no_connection_or_no_broker(network: Network) -> None:
    network.is_down = True
    network.channels.put(2, "a")
    await wait_all_tasks_blocked()
    network.channels.put(3, "b")
    assert network.failed == ["a", "b"]


@pytest.mark.parametrize("registrations", [[], [(2, 5)]])
async def test_items_fail_when_their_broker_leaves_or_registers_again(
    network: Network, registrations: list[tuple[int, int]]
) -> None:
    network.channels.put(2, "sent")
    await wait_all_tasks_blocked()
    network.channels.put(2, "queued")
    network.channels.on_image(image(*registrations))
    await wait_all_tasks_blocked()
    assert network.failed == ["sent", "queued"]
    assert network.connections[0].is_closed
