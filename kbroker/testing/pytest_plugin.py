"""The pytest plugin: fixtures `kbroker` and `kbroker_session`, and the markers that describe their brokers.

pytest imports this in every run of everybody who has kbroker installed: nothing of the broker is imported before one of
the fixtures is used.
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
        f"{_TOPICS}(*topics): what the broker of this test has from the start; each is a name, or name:partitions",
        f"{_SETTINGS}(**settings): how the broker of this test is set, by Kafka's names with underscores for dots",
    ):
        config.addinivalue_line("markers", line)


@pytest.fixture(scope="session")
def kbroker_settings() -> dict[str, Any]:
    """Settings of every broker that the fixtures start. Override it in a conftest.py: `{"num_partitions": 3}`."""
    return {}


@pytest.fixture
def kbroker(request: pytest.FixtureRequest, kbroker_settings: dict[str, Any]) -> Iterator[Broker]:
    """A Kafka broker of this test alone: `kbroker.bootstrap`, `kbroker.create_topic`, `kbroker.faults`."""
    from kbroker.testing.broker import Broker

    settings = dict(kbroker_settings)
    for marker in reversed(list(request.node.iter_markers(_SETTINGS))):
        settings.update(marker.kwargs)
    with Broker(topics=_topics_of([request.node]), **settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def kbroker_session(request: pytest.FixtureRequest, kbroker_settings: dict[str, Any]) -> Iterator[Broker]:
    """A Kafka broker for all tests of the run (with pytest-xdist: of one worker) that ask for it.

    It has the topics that any of those tests declares.
    """
    from kbroker.testing.broker import Broker

    users = [each for each in request.session.items if "kbroker_session" in getattr(each, "fixturenames", ())]
    with Broker(topics=_topics_of(users), **kbroker_settings) as broker:
        yield broker


def _topics_of(items: Iterable[pytest.Item]) -> list[str]:
    """Each once, in the order in which they are declared: of the module first, then of the class, then of the test."""
    names: dict[str, None] = {}
    for item in items:
        for marker in reversed(list(item.iter_markers(_TOPICS))):
            names.update(dict.fromkeys(marker.args))
    return list(names)
