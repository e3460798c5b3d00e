"""One Kafka for several tests, which keep out of each other's way by names."""

from __future__ import annotations

import pytest

from kbroker.testing import Broker


@pytest.mark.kbroker_topics("first")
def test_one_test_leaves_a_topic(kbroker_session: Broker) -> None:
    kbroker_session.create_topic("left-over")
    assert {"first", "second", "left-over"} <= set(kbroker_session.topics)


@pytest.mark.kbroker_topics("second:2")
def test_declared_topics_of_all_tests_are_there(kbroker_session: Broker) -> None:
    assert {"first", "second"} <= set(kbroker_session.topics)


def test_a_broker_of_its_own_stands_beside_it(kbroker_session: Broker, kbroker: Broker) -> None:
    assert kbroker.bootstrap != kbroker_session.bootstrap
    assert kbroker.topics == []
