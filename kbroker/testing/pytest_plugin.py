"""Pytest plugin: the fixtures `kbroker` and `kbroker_session`, and the markers that configure their brokers.

pytest imports this module in every run if kbroker is installed, so the broker is imported only when a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    """A Kafka broker for one test: `kbroker.bootstrap`, `kbroker.create_topic`, `kbroker.faults`."""
    from kbroker.testing.broker import Broker

    settings = dict(kbroker_settings)
    for marker in reversed(list(request.node.iter_markers(_SETTINGS))):
        settings.update(marker.kwargs)
    with Broker(topics=_topics_of([request.node]), **settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def kbroker_session(request: pytest.FixtureRequest, kbroker_settings: dict[str, Any]) -> Iterator[Broker]:
    """A Kafka broker shared by all tests of the run that use this fixture (with pytest-xdist: of one worker).

    It has the topics that any of these tests declares.
    """
    from kbroker.testing.broker import Broker

    users = [item for item in request.session.items if "kbroker_session" in getattr(item, "fixturenames", ())]
    with Broker(topics=_topics_of(users), **kbroker_settings) as broker:
        yield broker


def _topics_of(items: Iterable[pytest.Item]) -> list[str]:
    """Returns the declared topics without duplicates: first of the module, then of the class, then of the test."""
    names: dict[str, None] = {}
    for item in items:
        for marker in reversed(list(item.iter_markers(_TOPICS))):
            names.update(dict.fromkeys(marker.args))
    return list(names)
