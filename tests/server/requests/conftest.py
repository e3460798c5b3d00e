"""Fixture of the twins."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from kbroker.config.broker import BrokerConfig
from kbroker.controller.trees.embedded_tree import open_embedded_tree
from kbroker.server.requests.fetch_session import FetchSessions
from kbroker.server.wire.deadlines import Deadlines
from tests.server.handlers.harness import HandlerBroker
from tests.server.requests.twins import TOPICS, Source, Twins, topic_id


@pytest.fixture
async def twins(tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Twins]:
    async with AsyncExitStack() as stack:
        brokers = []
        for name in ("quick", "plain"):
            (tmp_path / name).mkdir()
            tree = await stack.enter_async_context(open_embedded_tree(":memory:"))
            source = Source()
            broker = HandlerBroker(tree, BrokerConfig.from_properties({}), tmp_path / name, nursery, source.take)
            broker.context.deadlines = Deadlines()
            broker.context.fetch_sessions = FetchSessions(1000, iter(range(1, 100_000)).__next__, broker.clock)
            stack.callback(broker.close)
            await broker.start()
            for topic in TOPICS:
                source.next = topic_id(topic)
                created = await broker.create_topic(topic, 2)
                assert created.id == topic_id(topic)
            brokers.append(broker)
        yield Twins(brokers[0], brokers[1], monkeypatch)
