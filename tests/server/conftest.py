"""Brokers for the tests of handlers; see harness.py."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from kbroker.config.broker import BrokerConfig
from kbroker.controller.trees.embedded_tree import open_embedded_tree
from tests.server.handlers.harness import HandlerBroker

StartBroker = Callable[..., Awaitable[HandlerBroker]]


@pytest.fixture
async def start_broker(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[StartBroker]:
    """Starts a broker with the given properties: `await start_broker(num_partitions=3)`."""
    async with AsyncExitStack() as stack:

        async def start(**properties: object) -> HandlerBroker:
            texts = {name.replace("_", "."): str(value) for name, value in properties.items()}
            tree = await stack.enter_async_context(open_embedded_tree(":memory:"))
            broker = HandlerBroker(tree, BrokerConfig.from_properties(texts), tmp_path, nursery)
            stack.callback(broker.close)
            await broker.start()
            return broker

        yield start


@pytest.fixture
async def broker(start_broker: StartBroker) -> HandlerBroker:
    return await start_broker()
