"""Pytest plugin: fixtures with a broker for a test, a class, a module or the whole run, and markers to configure them.

pytest imports this module in every run if kbroker is installed, so the broker is imported only when a fixture is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kbroker.testing.broker import Broker

__all__: list[str] = []

_TOPICS = "kbroker_topics"
_SETTINGS = "kbroker_settings"


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        f"{_TOPICS}(*topics): topics that the broker of this test has at startup, as name or name:partitions",
        f"{_SETTINGS}(**settings): configs of the broker of this test: Kafka's names with underscores for dots",
    ):
        config.addinivalue_line("markers", line)


@pytest.fixture(scope="session")
def kbroker_settings() -> dict[str, Any]:
    """Configs of all brokers that the fixtures start. Override it in a conftest.py: `{"num_partitions": 3}`."""
    return {}


@pytest.fixture
def kbroker(request: pytest.FixtureRequest, kbroker_settings: dict[str, Any]) -> Iterator[Broker]:
    """A Kafka broker for one test: `kbroker.bootstrap`, `kbroker.produce`, `kbroker.records`, `kbroker.faults`."""
    with _broker(request.node, [request.node], kbroker_settings) as broker:
        yield broker


@pytest.fixture(scope="class")
def kbroker_class(request: pytest.FixtureRequest, kbroker_settings: dict[str, Any]) -> Iterator[Broker]:
    """A Kafka broker shared by the tests of a class."""
    with _broker(request.node, _users(request), kbroker_settings) as broker:
        yield broker


@pytest.fixture(scope="module")
def kbroker_module(request: pytest.FixtureRequest, kbroker_settings: dict[str, Any]) -> Iterator[Broker]:
    """A Kafka broker shared by the tests of a module."""
    with _broker(request.node, _users(request), kbroker_settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def kbroker_session(request: pytest.FixtureRequest, kbroker_settings: dict[str, Any]) -> Iterator[Broker]:
    """A Kafka broker shared by all tests of the run that use this fixture (with pytest-xdist: of one worker)."""
    with _broker(request.node, _users(request), kbroker_settings) as broker:
        yield broker


@contextmanager
def _broker(
    node: pytest.Item | pytest.Collector, users: Iterable[pytest.Item], base: dict[str, Any]
) -> Iterator[Broker]:
    """Runs the broker of a test, a class, a module or the session. It has the topics that any of its users declares.

    Warns at the line of the test or class about each setting without effect.
    """
    from kbroker.testing.broker import Broker

    settings = dict(base)
    for marker in reversed(list(node.iter_markers(_SETTINGS))):
        settings.update(marker.kwargs)
    with warnings.catch_warnings(record=True, category=UserWarning, action="always") as caught:
        created = Broker(topics=_topics_of(users), **settings)
    for warning in caught:
        node.warn(UserWarning(str(warning.message)))
    with created as broker:
        yield broker


def _users(request: pytest.FixtureRequest) -> list[pytest.Item]:
    """Returns the tests that share the broker of the requested fixture."""
    name, node = request.fixturename, request.node
    return [
        item for item in request.session.items if name in getattr(item, "fixturenames", ()) and node in item.listchain()
    ]


def _topics_of(items: Iterable[pytest.Item]) -> list[str]:
    """Returns the declared topics without duplicates: first of the module, then of the class, then of the test."""
    names: dict[str, None] = {}
    for item in items:
        for marker in reversed(list(item.iter_markers(_TOPICS))):
            names.update(dict.fromkeys(marker.args))
    return list(names)
