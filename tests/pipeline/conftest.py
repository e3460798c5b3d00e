"""One Spark session for all tests of a process, and a broker for each test."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.testing import Broker
from tests.cluster.conftest import session_ms, three, zookeeper

__all__ = ["session_ms", "three", "zookeeper"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Assigns all tests with Spark to one worker, so that they share a session."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
            # py4j leaves its sockets to the garbage collector, which Python reports as a warning.
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(autouse=True)
def collected_sockets(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collects the sockets of py4j in the test that has used them, and not in a later one."""
    yield
    if "spark" in request.fixturenames:
        gc.collect()


@pytest.fixture(scope="session")
def spark(shared_spark: Any) -> Any:
    """The session that all tests of this process share: give queries and views names of their own."""
    return shared_spark


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def produce(broker: Broker) -> Callable[..., None]:
    """Writes records to a topic: `produce("orders", [("key", "value"), ...], partition=0)`."""
    from confluent_kafka import Producer

    def write(topic: str, records: Any, **options: Any) -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
        for key, value in records:
            producer.produce(topic, key=key, value=value, **options)
            producer.poll(0)
        assert producer.flush(60) == 0

    return write
