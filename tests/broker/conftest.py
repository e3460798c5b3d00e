"""Whole brokers, over real sockets: in this process where a loop is enough, as a child where it has to die."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from kbroker.testing.running_broker import RunningBroker, running_broker
from tests.broker.wire import Client, connect

StartBroker = Callable[..., Awaitable[RunningBroker]]
Connect = Callable[[RunningBroker], Awaitable[Client]]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
async def start_broker(nursery: trio.Nursery, data_dir: Path) -> AsyncIterator[StartBroker]:
    """`await start_broker({"num.partitions": "3"})`, always on the test's own data directory."""
    started: list[RunningBroker] = []

    async def hold(properties: dict[str, str] | None, *, task_status: trio.TaskStatus[RunningBroker]) -> None:
        async with running_broker(data_dir, properties) as broker:
            started.append(broker)
            task_status.started(broker)
            await broker.wait_stopped()

    async def start(properties: dict[str, str] | None = None) -> RunningBroker:
        broker: RunningBroker = await nursery.start(hold, properties)
        return broker

    yield start
    for broker in started:
        await broker.stop()


@pytest.fixture
async def connect_to(start_broker: StartBroker) -> AsyncIterator[Connect]:
    """Connections that are closed before the broker stops, so that it does not wait for their open requests."""
    async with AsyncExitStack() as connections:

        async def connect_to_broker(broker: RunningBroker) -> Client:
            return await connections.enter_async_context(connect(broker.port))

        yield connect_to_broker


@pytest.fixture
async def broker(start_broker: StartBroker) -> RunningBroker:
    return await start_broker()


@pytest.fixture
async def client(broker: RunningBroker, connect_to: Connect) -> Client:
    return await connect_to(broker)


@pytest.fixture(params=["epoll", "portable"])
def either_watcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs tests of the sockets twice: with epoll and sendfile, and with the portable implementation."""
    monkeypatch.setenv("KBROKER_PORTABLE", "1" if request.param == "portable" else "")
    return str(request.param)
